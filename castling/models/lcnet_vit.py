"""Castling-LCNet-ViT: PP-LCNet with one transformer block in the place of all but the first block of its last stages.

The backbones of the starred rows of the COCO table (S, M and L are scales 0.75, 1.5 and 2) and of the kernel and
component ablations, where `kernel="softmax"` is LCNet-ViT and `transformer=False` LCNet.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any, NamedTuple

from timm.layers import ConvNormAct, make_divisible
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models._efficientnet_blocks import DepthwiseSeparableConv, SqueezeExcite
from torch import Tensor, nn

from castling.config import AttentionConfig
from castling.models.hybrid import HybridNet, MapTransformer, transformer_config
from castling.models.pretrained import default_cfg

STEM_WIDTH = 16
ACT = nn.Hardswish


class Stage(NamedTuple):
    """Blocks of LCNet up to the next stride.

    Args:
        width: channels before they are scaled.
        first_taps: taps per axis of the first block, which halves the map.
        taps: taps per axis of the others.
        others: the number of these.
        squeeze: whether blocks have squeeze-and-excitation.
        local: whether the others are never transformers.
    """

    width: int
    first_taps: int
    taps: int
    others: int
    squeeze: bool
    local: bool


STAGES = (
    Stage(32, 3, 3, 0, squeeze=False, local=True),  # behind the stem's convolution, which halves the image for it
    Stage(64, 3, 3, 1, squeeze=False, local=True),
    Stage(128, 3, 3, 1, squeeze=False, local=True),
    Stage(256, 3, 5, 5, squeeze=False, local=False),
    Stage(512, 5, 5, 1, squeeze=True, local=False),
)


class CastlingLcnetVit(HybridNet):
    """LCNet whose stages at strides 16 and 32 are a convolution that halves the map and a transformer block.

    Args:
        scale: factor of all channels.
        num_heads: heads of the two transformers.
        attention: options of the attention; the authors' block where None.
        kernel: another kernel for it; `softmax` gives the baseline twin of the same network.
        mlp_conv_size: taps per axis of the convolution in the MLPs; 0 for none.
        transformer: whether there are transformers; LCNet itself without.
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
        num_heads: tuple[int, int] = (8, 16),
        attention: AttentionConfig | None = None,
        kernel: str | None = None,
        mlp_conv_size: int = 0,
        transformer: bool = True,
        num_classes: int = 1000,
        in_chans: int = 3,
        global_pool: str = "avg",
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        config = transformer_config(transformer, attention, kernel)
        if len(num_heads) != 2:
            raise ValueError(f"num_heads are those of two transformers; got {num_heads}")
        width, *channels = (make_divisible(base * scale) for base in (STEM_WIDTH, *(stage.width for stage in STAGES)))
        stages: list[list[nn.Module]] = [[ConvNormAct(in_chans, width, 3, stride=2, act_layer=ACT)], [], [], [], []]
        heads = iter(num_heads)
        for stage, blocks, out in zip(STAGES, stages, channels, strict=True):
            blocks.append(_convolution(width, out, stage.first_taps, 1 if blocks else 2, stage.squeeze))
            if transformer and not stage.local:
                blocks.append(MapTransformer(out, next(heads), config, mlp_conv_size, drop_path_rate))
            else:
                blocks += [_convolution(out, out, stage.taps, 1, stage.squeeze) for _ in range(stage.others)]
            width = out
        super().__init__(stages, channels, num_classes, in_chans, global_pool, drop_rate)


def _convolution(width: int, out: int, taps: int, stride: int, squeeze: bool) -> nn.Module:
    """LCNet's block: depthwise, squeeze-and-excitation where it has one, 1 x 1; no shortcut."""
    gate = partial(SqueezeExcite, gate_layer="hard_sigmoid", force_act_layer=nn.ReLU) if squeeze else None
    return DepthwiseSeparableConv(width, out, taps, stride, noskip=True, pw_act=True, act_layer=ACT, se_layer=gate)


def from_timms_lcnet(weights: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Weights of timm's LCNet under our names, less the convolutions that transformers replace.

    Args:
        weights: a state dict of timm's network of the same scale.
        model: our network, with or without transformers.
    """
    own = model.state_dict()
    renamed = {_our_name(name): value for name, value in weights.items()}
    replaced = re.compile(r"stages\.[34]\.[1-9]")
    return {name: value for name, value in renamed.items() if name in own or not replaced.match(name)}


def _our_name(name: str) -> str:
    """The name of a weight of timm's LCNet in ours."""
    name = re.sub(r"^conv_stem\.", "stages.0.0.conv.", name)
    name = re.sub(r"^bn1\.", "stages.0.0.bn.", name)
    name = re.sub(r"^blocks\.0\.0", "stages.0.1", name)
    name = re.sub(r"^blocks\.4\.(\d)", lambda found: f"stages.3.{int(found[1]) + 2}", name)  # timm counts two stages
    name = re.sub(r"^blocks\.5", "stages.4", name)
    return re.sub(r"^blocks", "stages", name)


def _create(variant: str, pretrained: bool, **kwargs: Any) -> CastlingLcnetVit:
    return build_model_with_cfg(
        CastlingLcnetVit,
        variant,
        pretrained,
        feature_cfg={"out_indices": kwargs.pop("out_indices", (2, 3, 4)), "feature_cls": "getter"},
        **{"scale": SCALES[variant], **kwargs},
    )


SCALES = {"castling_lcnet_vit_small": 0.75, "castling_lcnet_vit_medium": 1.5, "castling_lcnet_vit_large": 2.0}

default_cfgs = generate_default_cfgs(
    {name: default_cfg(first_conv="stages.0.0.conv", classifier="classifier") for name in SCALES}
)


@register_model
def castling_lcnet_vit_small(pretrained: bool = False, **kwargs: Any) -> CastlingLcnetVit:
    """Castling-LCNet-ViT-S; `kernel`, `transformer` and the other arguments of `CastlingLcnetVit` as keywords."""
    return _create("castling_lcnet_vit_small", pretrained, **kwargs)


@register_model
def castling_lcnet_vit_medium(pretrained: bool = False, **kwargs: Any) -> CastlingLcnetVit:
    """Castling-LCNet-ViT-M."""
    return _create("castling_lcnet_vit_medium", pretrained, **kwargs)


@register_model
def castling_lcnet_vit_large(pretrained: bool = False, **kwargs: Any) -> CastlingLcnetVit:
    """Castling-LCNet-ViT-L."""
    return _create("castling_lcnet_vit_large", pretrained, **kwargs)
