"""The softmax networks beside the Castling models, by the same names.

There are two: the same network with softmax attention, which tells what the attention gives, and the plain host that
the paper started from, without the convolutions that Castling adds, which tells what a user gets.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import timm
from timm.models.mvitv2 import MultiScaleVit, model_cfgs
from torch import nn

from castling.config import AttentionConfig, check_choice
from castling.models import deit, esnet_vit, lcnet_vit, levit, mvitv2
from castling.models.levit import PLAIN_LEVIT
from castling.models.levit_attention import LevitDesign
from castling.models.softmax_attention import fuse_mvitv2, plain_levit, unfuse_hybrid

HYBRIDS = (*lcnet_vit.SCALES, *esnet_vit.SIZES)
NAMES = (*deit.SIZES, *levit.SIZES, *mvitv2.DEPTHS, *HYBRIDS)


def softmax_twin(name: str, **options: Any) -> nn.Module:
    """A Castling model with plain softmax attention, fused, and all else as it is; in evaluation mode.

    Args:
        name: name of the Castling model.
        **options: arguments of the Castling model.

    Raises:
        ValueError: for another model; names those that there are.

    Example:
        >>> twin = softmax_twin("castling_deit_tiny_patch16_224", depth=1, img_size=64)
        >>> twin.blocks[0].attn.config.kernel, twin.blocks[0].mlp.conv.kernel_size
        ('softmax', (5, 5))
    """
    check_choice("model", name, NAMES)
    plain = AttentionConfig.baseline()
    attention = {"design": LevitDesign(attention=plain)} if name in levit.SIZES else {"attention": plain}
    return timm.create_model(name, **attention, **options).eval()


def softmax_baseline(name: str, fused: bool = True, **options: Any) -> nn.Module:
    """The plain softmax network beside a Castling model, in evaluation mode and for inference only.

    Args:
        name: name of the Castling model. DeiT and MViTv2 are timm's, LeViT is ours in its plain design, LCNet-ViT and
            ESNet-ViT are ours without our convolutions.
        fused: attention through `F.scaled_dot_product_attention`; otherwise with its N x N map written out. A fused
            MViTv2 has no relative positions, for which it would need that map; a fused LeViT widens its keys to its
            values, and so counts more MACs than LeViT has.
        **options: arguments of the Castling model: `img_size` where it has one, `num_classes`, `patch_size` of DeiT,
            depths. Positions are made for `img_size`, so give the size that is used.

    Raises:
        ValueError: for a model without a baseline; names those that have one.

    Example:
        >>> baseline = softmax_baseline("castling_deit_tiny_patch16_224", depth=1, img_size=64)
        >>> type(baseline).__name__, baseline.blocks[0].attn.fused_attn
        ('VisionTransformer', True)
    """
    check_choice("model", name, NAMES)
    if name in deit.SIZES:
        host = timm.create_model(name.removeprefix("castling_"), **{"dynamic_img_size": True, **options})
        for block in host.blocks:
            block.attn.fused_attn = fused
        return host.eval()
    if name in levit.SIZES:
        return plain_levit(timm.create_model(name, design=PLAIN_LEVIT, mlp_conv_size=0, **options), fused)
    if name in HYBRIDS:
        hybrid = timm.create_model(name, attention=AttentionConfig.baseline(), **{"mlp_conv_size": 0, **options})
        return (hybrid if fused else unfuse_hybrid(hybrid)).eval()
    cfg = model_cfgs[name.removeprefix("castling_")]
    depths = options.pop("depths", cfg.depths)
    cfg = replace(cfg, depths=depths, rel_pos_type="none" if fused else cfg.rel_pos_type)
    host = MultiScaleVit(cfg, **options)
    return (fuse_mvitv2(host) if fused else host).eval()
