"""One factor per head, so that castling attention starts at the size of the softmax attention it takes over from.

The output norm makes every head's output a unit vector, whatever the size of the values; the layers behind were trained
on another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from castling.config import check_type
from castling.conversion.converted import check_blend_done, converted_attentions
from castling.measure.eval_mode import eval_mode


@torch.no_grad()
def calibrate(model: nn.Module, batches: Iterable[Any]) -> dict[str, list[float]]:
    """Set the scale of every head so that castling attention has the root mean square of the host's softmax.

    All layers see what they see in the host, whatever the blend is. The scales are buffers, `head_scale`, and so in the
    state dict: lost with a checkpoint, they would change the outputs without notice. Not every host could hold them
    in its projection, as LeViT has an activation and MViTv2 the queries in between; `fold_scale` does where one can.

    Args:
        model: a converted model; in evaluation mode for the time being.
        batches: a few batches of images, alone, first in a tuple, or as `image` or `pixel_values` of a mapping.

    Returns:
        The scales of each attention by name.

    Raises:
        ValueError: for a model without converted attention, or if there is no batch.

    Example:
        >>> from castling.conversion.replace import convert
        >>> model = convert(nn.TransformerEncoderLayer(32, 4, batch_first=True))
        >>> {name: len(scales) for name, scales in calibrate(model, [torch.randn(2, 50, 32)]).items()}
        {'self_attn': 4}
    """
    attentions = converted_attentions(model)
    if isinstance(batches, Tensor):
        raise TypeError(
            f"batches must be several batches, such as a list of them; got one tensor {tuple(batches.shape)}"
        )
    check_type("batches", batches, Iterable, "several batches, such as a list of them")
    device = next(model.parameters()).device
    sums = {name: torch.zeros(2, a.num_heads, dtype=torch.float64, device=device) for name, a in attentions.items()}
    num_batches = 0
    try:
        for name, attention in attentions.items():
            attention.observer = partial(_add_squares, sums[name])
        with eval_mode(model):
            for batch in batches:
                model(_images(batch).to(device))
                num_batches += 1
    finally:
        for attention in attentions.values():
            attention.observer = None
    if not num_batches:
        raise ValueError("there was no batch to calibrate the model on")
    for name, attention in attentions.items():
        host, castling = sums[name]
        seen = (host > 0) & (castling > 0)  # a head that gives nothing has no size to match
        ratio = torch.where(seen, host / castling, 1.0).sqrt().float()
        old = attention.head_scale
        attention.head_scale = ratio if old is None else old * ratio.to(old.dtype)
    return {name: a.head_scale.tolist() for name, a in attentions.items() if a.head_scale is not None}


@torch.no_grad()
def fold_scale(model: nn.Module) -> list[str]:
    """Multiply the scales into the output projections, where nothing stands in between; the outputs stay the same.

    What is folded leaves the state dict, which then has the host's names and the convolutions' alone. The projection's
    weights change for good: `unconvert` does not bring them back.

    Args:
        model: a converted model at blend 1, castled or not.

    Returns:
        Names of the attentions that were folded. The others keep their scale.

    Raises:
        ValueError: for a model without converted attention, or with a blend below 1: its softmax needs the projection
            as it is.

    Example:
        >>> from castling.conversion.replace import convert
        >>> model = convert(nn.TransformerEncoderLayer(32, 4, batch_first=True), blend=1)
        >>> _ = calibrate(model, [torch.randn(2, 50, 32)])
        >>> fold_scale(model), "self_attn.head_scale" in model.state_dict()
        (['self_attn'], False)
    """
    attentions = converted_attentions(model)
    check_blend_done(model)
    folded = []
    for name, attention in attentions.items():
        projection = attention.output_projection
        if attention.head_scale is not None and projection is not None:
            weight = projection.weight
            columns = attention.head_scale.repeat_interleave(weight.shape[1] // attention.num_heads)
            weight.mul_(columns.to(weight.dtype))
            attention.head_scale = None
            folded.append(name)
    return folded


def _add_squares(sums: Tensor, host: Tensor, castling: Tensor) -> None:
    for total, out in zip(sums, (host, castling), strict=True):
        total += out.double().square().sum((0, 1, 3))


def _images(batch: Any) -> Tensor:
    if isinstance(batch, Mapping):
        return batch["image"] if "image" in batch else batch["pixel_values"]
    return batch if isinstance(batch, Tensor) else batch[0]
