"""What timm wants to know about each model, and weights of other networks loaded into ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor, nn

from castling.models.hybrid import MapTransformer
from castling.sentences import LONGEST, shown

NEW_PARAMETERS = ("local_conv.weight", "mlp.conv.weight", "head_scale")


def default_cfg(**kwargs: Any) -> dict[str, Any]:
    """What timm's registry keeps about a model's input; none of ours has published weights."""
    return {
        "url": "",
        "num_classes": 1000,
        "input_size": (3, 224, 224),
        "pool_size": None,
        "crop_pct": 0.9,
        "interpolation": "bicubic",
        "mean": IMAGENET_DEFAULT_MEAN,
        "std": IMAGENET_DEFAULT_STD,
        "fixed_input_size": False,
        "license": "apache-2.0",
        **kwargs,
    }


def load_host_weights(
    model: nn.Module,
    weights: Mapping[str, Tensor],
    adapt: Callable[[dict[str, Tensor], nn.Module], dict[str, Tensor]] | None = None,
) -> list[str]:
    """Load the weights of the plain network that a Castling model was made from.

    Args:
        model: a Castling model.
        weights: a state dict of timm's model of the same size.
        adapt: timm's `checkpoint_filter_fn` of that family, which resamples position embeddings to another size, or
            ours, such as `castling.models.lcnet_vit.from_timms_lcnet`.

    Returns:
        Names of the new convolutions, and of transformers among a host's convolutions, which stay at their initial
        value.

    Raises:
        ValueError: if anything else is missing, has another shape, or there is more than the model takes; then nothing
            is loaded.
    """
    adapted = dict(weights) if adapt is None else adapt(dict(weights), model)
    expected = model.state_dict()
    missing = {name for name in expected.keys() - adapted.keys() if not name.endswith(NEW_PARAMETERS)}
    for block, module in model.named_modules():
        inside = {f"{block}.{name}" for name in module.state_dict()} if isinstance(module, MapTransformer) else set()
        if not inside & adapted.keys():  # no part of it: the host has none there
            missing -= inside
    unexpected = adapted.keys() - expected.keys()
    if missing or unexpected:
        names = f"missing {shown(sorted(missing), LONGEST)}, unexpected {shown(sorted(unexpected), LONGEST)}"
        raise ValueError(f"these weights do not fit: {names}")
    shapes = {name: (tuple(value.shape), tuple(expected[name].shape)) for name, value in adapted.items()}
    wrong = [f"{name} {given} for {wanted}" for name, (given, wanted) in shapes.items() if given != wanted]
    if wrong:
        raise ValueError(f"these weights do not fit: {len(wrong)} have other shapes, such as {wrong[0]}")
    return list(model.load_state_dict(adapted, strict=False).missing_keys)
