"""What a trained network attends to in a picture, and what spoke for its outcome, for any task.

Rows are exact and cost one pass over the tokens (`castling.measure.attention_rows`). Relevance is gradient times value:
to first order, by how much the task's evidence falls if a place gave its values to no attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torchvision.transforms.functional import to_pil_image

from castling.measure.attention_facts import Tokens, record_tokens
from castling.measure.attention_rows import implied_row, on_grid, softmax_row
from castling.measure.eval_mode import eval_mode
from castling.models.input_size import at_size
from castling.report.explanation import Explanation, LayerRow, place_on
from castling.tasks.pictures import in_channels
from castling.tasks.prediction import PicturePredictor, named_pictures, open_picture
from castling.tasks.task import Picture, Task
from castling.training.saved import SavedModel, open_model


def explain(
    model: SavedModel | Path | str,
    picture: Picture,
    at: Sequence[float] | None = None,
    layers: Sequence[str] | None = None,
    size: int | None = None,
) -> Explanation:
    """Look into a network while it looks at a picture.

    Args:
        model: a run folder, its castled folder, or what `castling.open` made of them.
        picture: one picture, in any form that `predict` takes.
        at: the place to ask about, its share of the width and of the height, from 0 to 1; the middle where None.
        layers: names of attentions; all that have a query for every place where None.
        size: another size to look at the picture in.

    Returns:
        Rows of attention, relevance, and what the network says; `save(folder)` writes pictures and arrays.

    Raises:
        ValueError: for a place outside of the picture, a network without attention of ours, such as an exported file,
            or a layer that there is not.

    Example:
        >>> import castling
        >>> seen = castling.explain("runs/digits/castled", "scan.png", at=(0.5, 0.25))  # doctest: +SKIP
        >>> seen.draw_relevance().save("why.png")  # doctest: +SKIP
    """
    saved = model if isinstance(model, SavedModel) else open_model(model)
    x, y = (0.5, 0.5) if at is None else at
    if not (0 <= x <= 1 and 0 <= y <= 1):
        raise ValueError(f"at is a share of the width and one of the height, from 0 to 1; got {x:g} and {y:g}")
    ((name, given),) = named_pictures(picture)
    task = saved.task if size is None else saved.task.elsewhere(image_size=size)
    network = saved.network if size is None else at_size(saved.network, size)
    predictor = task.predictor(network)
    if not isinstance(predictor, PicturePredictor):
        raise ValueError(f"pictures of the task {type(task).__name__} are not prepared one by one")
    images = predictor.prepare(in_channels(open_picture(given), predictor.channels))[None]
    images = images.to(next((weights.device for weights in network.parameters()), images.device)).requires_grad_()
    with eval_mode(network), torch.enable_grad(), record_tokens(network) as seen:
        evidence = task.evidence(network(images)).sum()
        seen = {name: tokens for name, tokens in seen.items() if len(tokens.q) == len(images)}  # and not of windows
        if not seen:
            raise ValueError("there is no attention in this network with a query for every place of the picture")
        gradients = torch.autograd.grad(evidence, [tokens.v for tokens in seen.values()], allow_unused=True)
    missing = [name for name in layers or () if name not in seen]
    if missing:
        raise ValueError(f"there is no attention {missing[0]!r} to look into; there are {', '.join(seen)}")
    view = seen_picture(images.detach()[0], task)
    place = (min(int(x * view.width), view.width - 1), min(int(y * view.height), view.height - 1))
    maps = [
        _relevance(tokens, gradient, network.get_submodule(layer).num_prefix_tokens, images.shape[-2:])  # type: ignore[arg-type]
        for (layer, tokens), gradient in zip(seen.items(), gradients, strict=True)
        if gradient is not None
    ]
    return Explanation(
        name=name,
        view=view,
        at=place,
        rows=[_row(layer, network.get_submodule(layer), seen[layer], place, view.size) for layer in layers or seen],
        relevance=torch.stack(maps).sum(0).cpu().numpy(),
        evidence=evidence.item(),
        said=predictor(given)[0].line(),
    )


def seen_picture(image: Tensor, task: Task) -> Image.Image:
    """A network's input `(C, H, W)` as a picture again."""
    preprocessing = task.deployment().preprocessing
    mean, std = (torch.tensor(preprocessing[name], device=image.device)[:, None, None] for name in ("mean", "std"))
    return to_pil_image((image * std + mean).clamp(0, 1).cpu()).convert("RGB")


def _relevance(tokens: Tokens, gradient: Tensor, num_prefix_tokens: int, size: Sequence[int]) -> Tensor:
    """What each place's values spoke for, `(height, width)`, the sum that of the tokens."""
    by_token = (tokens.v.detach() * gradient).sum((-2, -1))  # (1, N)
    _, patches = on_grid(by_token, tokens.grid, num_prefix_tokens)
    share = patches.numel() / (size[0] * size[1])
    return F.interpolate(patches[None], tuple(size), mode="nearest")[0, 0] * share


def _row(layer: str, module: torch.nn.Module, tokens: Tokens, at: tuple[int, int], size: tuple[int, int]) -> LayerRow:
    prefix: int = module.num_prefix_tokens  # type: ignore[assignment]
    _, patches = on_grid(tokens.q[0, :, 0, 0], tokens.grid, prefix)
    row, column = place_on(patches.shape, at, size)
    place = prefix + row * patches.shape[1] + column
    before, own = on_grid(implied_row(module, tokens, place)[0], tokens.grid, prefix)  # type: ignore[arg-type]
    _, softmax = on_grid(softmax_row(tokens, place)[0], tokens.grid, prefix)
    kernel: str = module.config.kernel  # type: ignore[union-attr, assignment]
    return LayerRow(layer, kernel, own.cpu().numpy(), before.cpu().numpy(), softmax.cpu().numpy())
