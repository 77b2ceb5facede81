"""Which image sizes a network takes, and an error that names the nearest ones."""

from __future__ import annotations

import copy
from typing import Any, cast

from torch import nn


def check_image_size(size: tuple[int, int], patch: tuple[int, int]) -> None:
    """Refuse an image whose height and width are not multiples of those of a patch.

    Raises:
        ValueError: names the nearest legal sizes.

    Example:
        >>> check_image_size((225, 224), (16, 16))
        Traceback (most recent call last):
        ValueError: an image of 225 x 224 does not fit patches of 16 x 16; the nearest sizes are 224 x 224 and 240 x 224
    """
    if all(side % step == 0 and side >= step for side, step in zip(size, patch, strict=True)):
        return
    below = tuple(max(step, side // step * step) for side, step in zip(size, patch, strict=True))
    above = tuple(-(-side // step) * step for side, step in zip(size, patch, strict=True))
    given, patches, below_text, above_text = (f"{rows} x {columns}" for rows, columns in (size, patch, below, above))
    raise ValueError(
        f"an image of {given} does not fit patches of {patches}; the nearest sizes are {below_text} and {above_text}"
    )


def patch_size(network: nn.Module) -> tuple[int, int] | None:
    """Height and width of the patches that a network of timm's or ours cuts an image into; None where it has none.

    Example:
        >>> import timm
        >>> patch_size(timm.create_model("vit_tiny_patch16_224", depth=1)), patch_size(nn.Conv2d(3, 4, 3))
        ((16, 16), None)
    """
    found = getattr(getattr(network, "patch_embed", None), "patch_size", None)
    if isinstance(found, int):
        return found, found
    return (found[0], found[-1]) if isinstance(found, (tuple, list)) else None


def at_size(network: nn.Module, size: int | tuple[int, int]) -> nn.Module:
    """A copy for pictures of another size, its position embeddings resampled where it has any of a fixed size.

    Args:
        network: any network.
        size: height and width, or the side of a square.
    """
    network = copy.deepcopy(network)
    if hasattr(network, "set_input_size"):
        cast(Any, network).set_input_size(img_size=(size, size) if isinstance(size, int) else size)
    return network
