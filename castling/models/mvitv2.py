"""Castling-MViTv2: timm's MViTv2 with linear-angular attention at full resolution and no relative positions.

The rows Castling-MViTv2-T, -S and -B of the ImageNet table. Keys and values are no longer pooled; a block that halves
the grid attends at full resolution first and pools the sum of output and queries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.mvitv2 import MultiScaleBlock, MultiScaleVit, MultiScaleVitCfg, checkpoint_filter_fn
from torch import Tensor, nn

from castling.attention import Grid, HeadMixer, Mlp
from castling.attention.grid import strided
from castling.config import AttentionConfig
from castling.models.pooling import head_conv, max_pool_tokens, pool_heads
from castling.models.pretrained import default_cfg


class MultiScaleHeadMixer(HeadMixer):
    """Attention with convolutions on q, k and v; the one on q halves the grid after the attention where `stride` is 2.

    Parameters are named as in timm. `forward(x, grid)` maps `(B, N, dim)` to `(B, N', out_dim)`.
    """

    def __init__(
        self,
        dim: int,
        out_dim: int,
        num_heads: int,
        stride: int,
        config: AttentionConfig,
        norm_layer: Callable[[int], nn.Module],
    ) -> None:
        super().__init__(num_heads, config)
        self.head_dim = head_dim = out_dim // num_heads
        self.stride = stride
        self.qkv = nn.Linear(dim, 3 * out_dim)
        self.pool_q, self.norm_q = head_conv(head_dim, stride), norm_layer(head_dim)
        self.pool_k, self.norm_k = head_conv(head_dim), norm_layer(head_dim)
        self.pool_v, self.norm_v = head_conv(head_dim), norm_layer(head_dim)
        self.proj = nn.Linear(out_dim, out_dim)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Attend among tokens of this grid."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).unbind(2)  # (B, N, H, D) each
        k = pool_heads(k, self.pool_k, self.norm_k, grid)
        v = pool_heads(v, self.pool_v, self.norm_v, grid)
        if self.stride == 1:
            q = pool_heads(q, self.pool_q, self.norm_q, grid)
            out = self.mix(*self.placed(q, k, grid), v, grid) + q
        else:
            out = pool_heads(self.mix(*self.placed(q, k, grid), v, grid) + q, self.pool_q, self.norm_q, grid)
        return self.proj(out.flatten(2))


class CastlingMultiScaleBlock(nn.Module):
    """A block made from timm's: the same norms and shortcuts, another attention and MLP.

    Args:
        host: timm's block.
        config: options of the attention.
        mlp_conv_size: taps per axis of the convolution in the MLP; 0 for none.
    """

    def __init__(self, host: MultiScaleBlock, config: AttentionConfig, mlp_conv_size: int) -> None:
        super().__init__()
        self.stride = 1 if host.shortcut_pool_attn is None else 2
        self.norm1, self.norm2 = host.norm1, host.norm2
        self.shortcut_proj_attn = host.shortcut_proj_attn
        self.drop_path1, self.drop_path2 = host.drop_path1, host.drop_path2
        norm_layer = partial(nn.LayerNorm, eps=host.norm1.eps)
        self.attn = MultiScaleHeadMixer(host.dim, host.dim_out, host.attn.num_heads, self.stride, config, norm_layer)
        self.mlp = Mlp(host.mlp.fc1.in_features, host.mlp.fc1.out_features, conv_size=mlp_conv_size)

    def forward(self, x: Tensor, grid: Grid) -> tuple[Tensor, Grid]:
        """Map tokens of this grid; returns them with their new grid."""
        normed = self.norm1(x)
        shortcut = x if self.shortcut_proj_attn is None else self.shortcut_proj_attn(normed)
        if self.stride > 1:
            shortcut = max_pool_tokens(shortcut, grid, self.stride)
        x = shortcut + self.drop_path1(self.attn(normed, grid))
        grid = strided(grid, self.stride)
        return x + self.drop_path2(self.mlp(self.norm2(x), grid)), grid


class CastlingMultiScaleVit(MultiScaleVit):
    """timm's MViTv2 with other blocks, for images of any size.

    Args:
        cfg: timm's description of the network.
        *args: arguments of timm's network.
        attention: options of the attention; the authors' block where None.
        kernel: another kernel for it; `softmax` gives the baseline twin of the same network.
        mlp_conv_size: taps per axis of the convolution in the MLPs; 0 for none.
        **kwargs: arguments of timm's network.
    """

    def __init__(
        self,
        cfg: MultiScaleVitCfg,
        *args: Any,
        attention: AttentionConfig | Mapping[str, Any] | None = None,
        kernel: str | None = None,
        mlp_conv_size: int = 5,
        **kwargs: Any,
    ) -> None:
        super().__init__(replace(cfg, rel_pos_type="none"), *args, **kwargs)
        config = AttentionConfig.of(attention).with_kernel(kernel)
        for info, (name, stage) in zip(self.feature_info, self.stages.named_children(), strict=True):
            info["module"] = f"stages.{name}"  # timm's says "block", which is no module
            stage.blocks = nn.ModuleList(CastlingMultiScaleBlock(host, config, mlp_conv_size) for host in stage.blocks)
        self.apply(self._init_weights)


def without_relative_positions(weights: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Weights of MViTv2 less the relative positions, which linear attention has no logits for."""
    kept = {name: tensor for name, tensor in weights.items() if "rel_pos" not in name}
    return checkpoint_filter_fn(kept, model)


def _create(variant: str, pretrained: bool, **kwargs: Any) -> CastlingMultiScaleVit:
    return build_model_with_cfg(
        CastlingMultiScaleVit,
        variant,
        pretrained,
        model_cfg=MultiScaleVitCfg(depths=kwargs.pop("depths", DEPTHS[variant])),
        pretrained_filter_fn=without_relative_positions,
        feature_cfg={"out_indices": kwargs.pop("out_indices", 4), "feature_cls": "getter"},
        **kwargs,
    )


DEPTHS = {
    "castling_mvitv2_tiny": (1, 2, 5, 2),
    "castling_mvitv2_small": (1, 2, 11, 2),
    "castling_mvitv2_base": (2, 3, 16, 3),
}

default_cfgs = generate_default_cfgs(
    {name: default_cfg(first_conv="patch_embed.proj", classifier="head.fc") for name in DEPTHS}
)


@register_model
def castling_mvitv2_tiny(pretrained: bool = False, **kwargs: Any) -> CastlingMultiScaleVit:
    """Castling-MViTv2-T; `kernel`, `attention`, `mlp_conv_size`, `depths` and timm's arguments as keywords."""
    return _create("castling_mvitv2_tiny", pretrained, **kwargs)


@register_model
def castling_mvitv2_small(pretrained: bool = False, **kwargs: Any) -> CastlingMultiScaleVit:
    """Castling-MViTv2-S, whose row in the paper repeats the baseline's."""
    return _create("castling_mvitv2_small", pretrained, **kwargs)


@register_model
def castling_mvitv2_base(pretrained: bool = False, **kwargs: Any) -> CastlingMultiScaleVit:
    """Castling-MViTv2-B."""
    return _create("castling_mvitv2_base", pretrained, **kwargs)
