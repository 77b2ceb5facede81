"""Castling-LeViT, and LeViT in every attention design of the paper's ablation.

The rows Castling-LeViT-128 to -384 of the ImageNet table, and the twelve of the two attention-design tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from timm.layers import DropPath, get_act_layer, to_2tuple
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models._features import feature_take_indices
from timm.models.levit import LevitMlp, NormLinear, Stem16
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from castling.attention import Grid
from castling.attention.grid import depthwise_on_grid, strided
from castling.config import AttentionConfig, check_odd
from castling.models.levit_attention import LevitAttention, LevitDesign, LevitDownsampleAttention
from castling.models.pretrained import default_cfg

PLAIN_LEVIT = LevitDesign("feature", "pre", residual_q=False, attention_bias=True, attention=AttentionConfig.baseline())


class ConvMlp(LevitMlp):
    """timm's LeViT MLP with an optional depthwise convolution on the hidden channels of the token grid."""

    def __init__(self, dim: int, hidden_dim: int, act_layer: Callable[[], nn.Module], conv_size: int = 0) -> None:
        super().__init__(dim, hidden_dim, act_layer=act_layer)
        self.conv: nn.Conv2d | None = None
        if conv_size:
            check_odd("conv_size", conv_size)
            self.conv = nn.Conv2d(hidden_dim, hidden_dim, conv_size, groups=hidden_dim, bias=False)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Map tokens `(B, N, dim)`."""
        x = self.ln1(x)
        if self.conv is not None:
            x = depthwise_on_grid(x, self.conv.weight, grid)
        return self.ln2(self.drop(self.act(x)))


class LevitBlock(nn.Module):
    """Attention and MLP of a stage, each with its residual."""

    def __init__(self, attn: LevitAttention, mlp: ConvMlp, drop_path: float) -> None:
        super().__init__()
        self.attn, self.mlp = attn, mlp
        self.drop_path1, self.drop_path2 = (DropPath(drop_path) if drop_path else nn.Identity() for _ in range(2))

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Map tokens `(B, N, dim)` of this grid."""
        x = x + self.drop_path1(self.attn(x, grid))
        return x + self.drop_path2(self.mlp(x, grid))


class LevitDownsample(nn.Module):
    """Down-sampling attention, then an MLP with its residual."""

    def __init__(self, attn: LevitDownsampleAttention, mlp: ConvMlp, drop_path: float) -> None:
        super().__init__()
        self.attn_downsample, self.mlp = attn, mlp
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Map tokens `(B, N, dim)` of this grid to `(B, N', out_dim)`."""
        x = self.attn_downsample(x, grid)
        return x + self.drop_path(self.mlp(x, strided(grid, 2)))


class LevitStage(nn.Module):
    """Blocks of one resolution, behind a down-sampler where there is one."""

    def __init__(self, downsample: LevitDownsample | None, blocks: list[LevitBlock]) -> None:
        super().__init__()
        self.downsample = downsample
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor, grid: Grid) -> tuple[Tensor, Grid]:
        """Map tokens of this grid; returns them with their new grid."""
        if self.downsample is not None:
            x, grid = self.downsample(x, grid), strided(grid, 2)
        for block in self.blocks:
            x = block(x, grid)
        return x, grid


class CastlingLevit(nn.Module):
    """LeViT with a choice of attention, for images of any size.

    Args:
        img_size: size for which attention biases are made, where a design has them.
        in_chans: channels of the image.
        num_classes: outputs; 0 for none.
        embed_dim: channels of the stages.
        key_dim: the D of LeViT; values are 2 D wide per head.
        depth: blocks of the stages.
        num_heads: heads of the stages.
        design: the attention; `PLAIN_LEVIT` is LeViT itself.
        kernel: another kernel for it; `softmax` gives the baseline twin of the same network.
        mlp_conv_size: taps per axis of the convolution in the stages' MLPs; 0 for none.
        distilled: a second head for distillation, averaged with the first but for `set_distilled_training`.
        act_layer: timm's name of an activation.
        global_pool: `avg`, or nothing.
        drop_rate: dropout before the classifier.
        drop_path_rate: stochastic depth.
    """

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        embed_dim: tuple[int, ...] = (128, 256, 384),
        key_dim: int = 16,
        depth: tuple[int, ...] = (4, 4, 4),
        num_heads: tuple[int, ...] = (4, 8, 12),
        design: LevitDesign | Mapping[str, Any] | None = None,
        kernel: str | None = None,
        mlp_conv_size: int = 5,
        distilled: bool = False,
        act_layer: str = "hard_swish",
        global_pool: str = "avg",
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        if not isinstance(design, LevitDesign):
            given = dict(design or {})
            design = LevitDesign(**{**given, "attention": AttentionConfig.of(given.get("attention"))})
        design = replace(design, attention=design.attention.with_kernel(kernel))
        act = get_act_layer(act_layer)
        self.num_classes, self.in_chans, self.global_pool = num_classes, in_chans, global_pool
        self.num_features = self.head_hidden_size = embed_dim[-1]
        self.drop_rate, self.grad_checkpointing, self.distilled_training = drop_rate, False, False
        self.stem = Stem16(in_chans, embed_dim[0], act_layer=act)
        height, width = to_2tuple(img_size)
        grid = strided((height, width), self.stem.stride)
        self.feature_info = []
        stages: list[LevitStage] = []
        for i, dim in enumerate(embed_dim):
            downsample = None
            if i > 0:
                attn = LevitDownsampleAttention(design, embed_dim[i - 1], dim, key_dim, act, grid)
                downsample = LevitDownsample(attn, ConvMlp(dim, 2 * dim, act), drop_path_rate)
                grid = strided(grid, 2)
            blocks = [
                LevitBlock(
                    LevitAttention(design, dim, num_heads[i], key_dim, act, grid),
                    ConvMlp(dim, 2 * dim, act, mlp_conv_size),
                    drop_path_rate,
                )
                for _ in range(depth[i])
            ]
            stages.append(LevitStage(downsample, blocks))
            self.feature_info.append({"num_chs": dim, "reduction": 16 * 2**i, "module": f"stages.{i}"})
        self.stages = nn.ModuleList(stages)
        self.distilled = distilled
        self.reset_classifier(num_classes)

    def get_classifier(self) -> nn.Module | tuple[nn.Module, nn.Module]:
        """The classifier, or both."""
        return (self.head, self.head_dist) if self.distilled else self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the classifier; 0 classes remove it."""
        self.num_classes = num_classes
        self.global_pool = self.global_pool if global_pool is None else global_pool

        def make_head() -> nn.Module:
            if not num_classes:
                return nn.Identity()
            head = NormLinear(self.num_features, num_classes, drop=self.drop_rate).train(self.training)
            return head.to(self.stem.conv1.linear.weight)  # its device and dtype

        self.head = make_head()
        if self.distilled:
            self.head_dist = make_head()

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Trade time for memory while training."""
        self.grad_checkpointing = enable

    def set_distilled_training(self, enable: bool = True) -> None:
        """Return both heads' logits while training."""
        self.distilled_training = enable

    def no_weight_decay(self) -> set[str]:
        """Parameters that weight decay leaves alone."""
        return {name for name, _ in self.named_parameters() if "attention_biases" in name}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Parameter groups from input to output, for layer-wise learning rates."""
        fine = [(r"^stages\.(\d+)\.downsample", (0,)), (r"^stages\.(\d+)\.blocks\.(\d+)", None)]
        return {"stem": r"^stem", "blocks": r"^stages\.(\d+)" if coarse else fine}

    def _stage_outputs(self, x: Tensor, num_stages: int) -> list[tuple[Tensor, Grid]]:
        x = self.stem(x)
        tokens, grid = x.flatten(2).transpose(1, 2), (x.shape[2], x.shape[3])
        outputs = []
        for stage in self.stages[:num_stages]:
            if self.grad_checkpointing and torch.is_grad_enabled() and not torch.compiler.is_exporting():
                tokens, grid = checkpoint(stage, tokens, grid, use_reentrant=False)
            else:
                tokens, grid = stage(tokens, grid)
            outputs.append((tokens, grid))
        return outputs

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """Features of several stages `(B, C, H, W)`, as in timm."""
        if output_fmt != "NCHW":
            raise ValueError(f"unknown output_fmt {output_fmt!r}; legal: 'NCHW'")
        take, last = feature_take_indices(len(self.stages), indices)
        outputs = self._stage_outputs(x, last + 1 if stop_early else len(self.stages))
        features = [tokens.transpose(1, 2).unflatten(-1, grid) for i, (tokens, grid) in enumerate(outputs) if i in take]
        return features if intermediates_only else (outputs[-1][0], features)

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drop the stages that these features do not need."""
        take, last = feature_take_indices(len(self.stages), indices)
        self.stages = self.stages[: last + 1]
        if prune_head:
            self.reset_classifier(0, "")
        return take

    def forward_features(self, x: Tensor) -> Tensor:
        """Tokens `(B, N, C)` of an image `(B, 3, H, W)`."""
        return self._stage_outputs(x, len(self.stages))[-1][0]

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Pool tokens and classify."""
        x = x.mean(dim=1) if self.global_pool == "avg" else x
        if pre_logits or not self.distilled:
            return x if pre_logits else self.head(x)
        logits = self.head(x), self.head_dist(x)
        return logits if self.distilled_training and self.training else (logits[0] + logits[1]) / 2

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Logits of an image `(B, 3, H, W)`."""
        return self.forward_head(self.forward_features(x))


def _create(variant: str, pretrained: bool, **kwargs: Any) -> CastlingLevit:
    return build_model_with_cfg(
        CastlingLevit,
        variant,
        pretrained,
        feature_cfg={"out_indices": kwargs.pop("out_indices", (0, 1, 2)), "feature_cls": "getter"},
        **{**SIZES[variant], **kwargs},
    )


SIZES: dict[str, dict[str, Any]] = {
    "castling_levit_128": {"embed_dim": (128, 256, 384), "key_dim": 16, "num_heads": (4, 8, 12)},
    "castling_levit_192": {"embed_dim": (192, 288, 384), "key_dim": 32, "num_heads": (3, 5, 6)},
    "castling_levit_256": {"embed_dim": (256, 384, 512), "key_dim": 32, "num_heads": (4, 6, 8)},
    "castling_levit_384": {"embed_dim": (384, 512, 768), "key_dim": 32, "num_heads": (6, 9, 12)},
}

default_cfgs = generate_default_cfgs(
    {name: default_cfg(first_conv="stem.conv1.linear", classifier="head.linear") for name in SIZES}
)


@register_model
def castling_levit_128(pretrained: bool = False, **kwargs: Any) -> CastlingLevit:
    """Castling-LeViT-128; `design`, `kernel`, `distilled` and the other arguments of `CastlingLevit` as keywords."""
    return _create("castling_levit_128", pretrained, **kwargs)


@register_model
def castling_levit_192(pretrained: bool = False, **kwargs: Any) -> CastlingLevit:
    """Castling-LeViT-192."""
    return _create("castling_levit_192", pretrained, **kwargs)


@register_model
def castling_levit_256(pretrained: bool = False, **kwargs: Any) -> CastlingLevit:
    """Castling-LeViT-256."""
    return _create("castling_levit_256", pretrained, **kwargs)


@register_model
def castling_levit_384(pretrained: bool = False, **kwargs: Any) -> CastlingLevit:
    """Castling-LeViT-384."""
    return _create("castling_levit_384", pretrained, **kwargs)
