"""Castling-ESNet-ViT: PicoDet's ESNet with two transformer blocks in the place of the last two blocks.

The backbones of the dagger rows of the COCO table: S, M and L are scales 0.75, 1 and 1.25.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import ConvNormAct, make_divisible
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models._efficientnet_blocks import SqueezeExcite
from torch import Tensor, nn

from castling.config import AttentionConfig
from castling.models.hybrid import HybridNet, MapTransformer, transformer_config
from castling.models.pretrained import default_cfg

STEM_WIDTH = 24
WIDTHS = (128, 256, 512)  # of the stages, before they are scaled
# Hidden channels of each block over its output, as PicoDet's search found them.
NARROW = ((0.875, 0.5, 0.5), (0.5, 0.625, 0.5, 0.625, 0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
WIDE = ((0.875, 0.5, 1.0), (0.625, 0.5, 0.75, 0.625, 0.625, 0.5, 0.625), (1.0, 0.625, 0.75))


def _layer(width: int, out: int, taps: int = 1, stride: int = 1) -> nn.Module:
    """Convolution and batch norm; 1 x 1 with hardswish, or depthwise and linear."""
    is_depthwise = taps > 1
    groups = width if is_depthwise else 1
    return ConvNormAct(width, out, taps, stride, groups=groups, apply_act=not is_depthwise, act_layer=nn.Hardswish)


def _squeeze(width: int) -> nn.Module:
    return SqueezeExcite(width, rd_channels=width // 4, gate_layer="hard_sigmoid")


class ShuffleBlock(nn.Module):
    """ESNet's block of stride 1: half the channels pass, the other half is convolved; then both are interleaved.

    Args:
        width: channels of the map.
        hidden: channels of squeeze-and-excitation, half of them from the depthwise convolution.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.conv_in = _layer(width // 2, hidden // 2)
        self.conv_dw = _layer(hidden // 2, hidden // 2, 3)
        self.se = _squeeze(hidden)
        self.conv_out = _layer(hidden, width // 2)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, width, H, W)` to the same."""
        kept, x = x.chunk(2, dim=1)
        x = self.conv_in(x)
        x = self.conv_out(self.se(torch.cat((x, self.conv_dw(x)), dim=1)))
        return F.channel_shuffle(torch.cat((kept, x), dim=1), 2)  # keeps the order in memory, as a transpose does not


class DownsampleBlock(nn.Module):
    """ESNet's block of stride 2: two branches that halve the map, joined by a depthwise separable convolution.

    Args:
        width: channels of the map.
        hidden: twice the channels of the second branch.
        out: channels of the output.
    """

    def __init__(self, width: int, hidden: int, out: int) -> None:
        super().__init__()
        self.first = nn.Sequential(_layer(width, width, 3, 2), _layer(width, out // 2))
        self.second = nn.Sequential(
            _layer(width, hidden // 2),
            _layer(hidden // 2, hidden // 2, 3, 2),
            _squeeze(hidden // 2),
            _layer(hidden // 2, out // 2),
        )
        self.join = nn.Sequential(ConvNormAct(out, out, 3, groups=out, act_layer=nn.Hardswish), _layer(out, out))

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, width, H, W)` to `(B, out, H / 2, W / 2)`."""
        return self.join(torch.cat((self.first(x), self.second(x)), dim=1))


class CastlingEsnetVit(HybridNet):
    """ESNet whose last stage is a block that halves the map and transformer blocks.

    Args:
        scale: factor of the stages' channels.
        ratios: hidden channels of each block over its output, by stage.
        num_heads: heads of the transformers.
        attention: options of the attention; the authors' block where None.
        kernel: another kernel for it; `softmax` gives the baseline twin of the same network.
        mlp_conv_size: taps per axis of the convolution in the MLPs; 0 for none.
        transformer: whether there are transformers; ESNet itself without.
        num_classes: outputs; 0 for none.
        in_chans: channels of the image.
        global_pool: `avg`, or nothing.
        drop_rate: dropout before the classifier.
        drop_path_rate: stochastic depth of the transformers.

    Raises:
        ValueError: for options of the attention without transformers, or heads that do not divide the channels.
    """

    def __init__(
        self,
        scale: float = 0.75,
        ratios: tuple[tuple[float, ...], ...] = NARROW,
        num_heads: int = 3,
        attention: AttentionConfig | None = None,
        kernel: str | None = None,
        mlp_conv_size: int = 5,
        transformer: bool = True,
        num_classes: int = 1000,
        in_chans: int = 3,
        global_pool: str = "avg",
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        config = transformer_config(transformer, attention, kernel)
        stem = ConvNormAct(in_chans, STEM_WIDTH, 3, stride=2, act_layer=nn.Hardswish)
        stages: list[list[nn.Module]] = [[stem], [nn.MaxPool2d(3, stride=2, padding=1)]]
        channels = [STEM_WIDTH, STEM_WIDTH]
        for base, stage_ratios in zip(WIDTHS, ratios, strict=True):
            out = make_divisible(base * scale, 16)
            first, *others = (make_divisible(int(out * ratio), 8) for ratio in stage_ratios)
            blocks: list[nn.Module] = [DownsampleBlock(channels[-1], first, out)]
            if transformer and base == WIDTHS[-1]:
                blocks += [MapTransformer(out, num_heads, config, mlp_conv_size, drop_path_rate) for _ in others]
            else:
                blocks += [ShuffleBlock(out, hidden) for hidden in others]
            stages.append(blocks)
            channels.append(out)
        super().__init__(stages, channels, num_classes, in_chans, global_pool, drop_rate)


def _create(variant: str, pretrained: bool, **kwargs: Any) -> CastlingEsnetVit:
    return build_model_with_cfg(
        CastlingEsnetVit,
        variant,
        pretrained,
        feature_cfg={"out_indices": kwargs.pop("out_indices", (2, 3, 4)), "feature_cls": "getter"},
        **{**SIZES[variant], **kwargs},
    )


SIZES: dict[str, dict[str, Any]] = {  # heads of 128 channels
    "castling_esnet_vit_small": {"scale": 0.75, "ratios": NARROW, "num_heads": 3},
    "castling_esnet_vit_medium": {"scale": 1.0, "ratios": WIDE, "num_heads": 4},
    "castling_esnet_vit_large": {"scale": 1.25, "ratios": WIDE, "num_heads": 5},
}

default_cfgs = generate_default_cfgs(
    {name: default_cfg(first_conv="stages.0.0.conv", classifier="classifier") for name in SIZES}
)


@register_model
def castling_esnet_vit_small(pretrained: bool = False, **kwargs: Any) -> CastlingEsnetVit:
    """Castling-ESNet-ViT-S; `kernel`, `transformer` and the other arguments of `CastlingEsnetVit` as keywords."""
    return _create("castling_esnet_vit_small", pretrained, **kwargs)


@register_model
def castling_esnet_vit_medium(pretrained: bool = False, **kwargs: Any) -> CastlingEsnetVit:
    """Castling-ESNet-ViT-M."""
    return _create("castling_esnet_vit_medium", pretrained, **kwargs)


@register_model
def castling_esnet_vit_large(pretrained: bool = False, **kwargs: Any) -> CastlingEsnetVit:
    """Castling-ESNet-ViT-L."""
    return _create("castling_esnet_vit_large", pretrained, **kwargs)
