"""Any picture size for timm's ViTs, which are made for one unless told otherwise: larger ones are why they castle."""

from __future__ import annotations

from typing import Any

from timm.layers import Format, PatchEmbed
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer
from torch import nn

BEFORE = "fixed_size_before"  # what a network had, on itself, so that it can have it again


def free_size(model: nn.Module) -> None:
    """Let every ViT of timm's inside take all sizes that its patches fill, as if made with `dynamic_img_size`.

    Position embeddings are resampled at each pass of another size; at its own size a network computes what it did.
    """
    for vit in model.modules():
        if _is_fixed(vit):
            free = {"flatten": False, "output_fmt": Format.NHWC, "strict_img_size": False}
            setattr(vit, BEFORE, {name: getattr(vit.patch_embed, name) for name in free})
            _set(vit, True, free)


def fix_size(model: nn.Module) -> None:
    """Undo `free_size`."""
    for vit in model.modules():
        before = getattr(vit, BEFORE, None)
        if before is not None:
            _set(vit, False, before)
            delattr(vit, BEFORE)


def _is_fixed(vit: Any) -> bool:
    known = (VisionTransformer._pos_embed, VisionTransformerDistilled._pos_embed)
    return (
        isinstance(vit, VisionTransformer)
        and type(vit)._pos_embed in known
        and type(vit.patch_embed) is PatchEmbed
        and vit.pos_embed is not None
        and not vit.dynamic_img_size
    )


def _set(vit: Any, dynamic: bool, of_patches: dict[str, Any]) -> None:
    vit.dynamic_img_size = dynamic
    for name, value in of_patches.items():
        setattr(vit.patch_embed, name, value)
