"""The attentions of LeViT in all designs of the paper's ablation (Tables "revisit" and "levit384").

LeViT pools features (narrow q and k) and makes its queries from fewer tokens ("pre-Q"). Castling-LeViT removes feature
pooling, pools the queries after their projection ("post-Q"), adds them to the output ("residual Q"), and keeps a skip
past the down-sampling. Parts and names are timm's, so that plain LeViT is a special case.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from timm.models.levit import LinearNorm
from torch import Tensor, nn

from castling.attention import Grid, HeadMixer
from castling.config import AttentionConfig, check_choice
from castling.models.pooling import head_conv, max_pool_tokens, pool_heads, slice_tokens

ActLayer = Callable[[], nn.Module]
QPooling = Literal["post", "pre"]
Pooling = Literal["none", "feature", "token"]


@dataclass(frozen=True)
class LevitDesign:
    """One row of the attention-design ablation. The default is Castling-LeViT.

    Args:
        pooling: `feature` for q and k of half the width in the stages (LeViT), `token` for k and v convolved with
            stride 2.
        q_pooling: queries of the down-samplers pooled after their projection (`post`, MViTv2) or before (`pre`, LeViT).
            `post` also gives the stages a convolution on q and the down-samplers a skip.
        residual_q: the pooled q as a summand of the output, wherever both are equally wide.
        attention_bias: a learned bias on the logits, softmax only.
        attention: kernel, branch and convolution.

    Raises:
        ValueError: for an unknown name, a residual without post-Q pooling, or a bias without softmax.
    """

    pooling: Pooling = "none"
    q_pooling: QPooling = "post"
    residual_q: bool = True
    attention_bias: bool = False
    attention: AttentionConfig = field(default_factory=AttentionConfig)

    def __post_init__(self) -> None:
        check_choice("pooling", self.pooling, get_args(Pooling))
        check_choice("q_pooling", self.q_pooling, get_args(QPooling))
        if self.residual_q and self.q_pooling == "pre":
            raise ValueError("residual_q adds the pooled queries and needs q_pooling='post'")
        if self.attention_bias and self.attention.kernel != "softmax" and not self.attention.aux:
            raise ValueError(f"attention_bias needs logits; kernel {self.attention.kernel!r} has none")


class _LevitMixer(HeadMixer):
    """What both attentions share: token pooling of k and v, biases, and the way out."""

    def __init__(self, design: LevitDesign, num_heads: int, key_dim: int, value_dim: int, grid: Grid) -> None:
        super().__init__(num_heads, design.attention)
        self.design = design
        self.key_dim, self.value_dim, self.head_dim = key_dim, value_dim, value_dim
        self.bias_grid = grid
        if design.attention_bias:
            self.attention_biases = nn.Parameter(torch.zeros(num_heads, grid[0] * grid[1]))
        if design.pooling == "token":
            self.pool_k, self.norm_k = head_conv(key_dim, stride=2), nn.LayerNorm(key_dim)
            self.pool_v, self.norm_v = head_conv(value_dim, stride=2), nn.LayerNorm(value_dim)

    def _way_out(self, out_dim: int, act_layer: ActLayer, bn_weight_init: float) -> nn.Sequential:
        projection = LinearNorm(self.num_heads * self.value_dim, out_dim, bn_weight_init=bn_weight_init)
        return nn.Sequential(OrderedDict(act=act_layer(), ln=projection))

    def _mix(self, q: Tensor, k: Tensor, v: Tensor, grid: Grid, q_stride: int, residual: bool) -> Tensor:
        """Pool k and v where the design says so, attend, add q: `(B, Nq, H * value_dim)`."""
        unpooled_v, key_stride = v, 1
        if self.design.pooling == "token":
            k = pool_heads(k, self.pool_k, self.norm_k, grid)
            v = pool_heads(v, self.pool_v, self.norm_v, grid)
            key_stride = 2
        bias = self.logit_bias(grid, q_stride, key_stride) if self.design.attention_bias else None
        subsample = partial(slice_tokens, grid=grid, stride=q_stride)
        placed_q, k = self.placed(q, k, grid, subsample, unpooled_v.shape[1])
        out = self.mix(placed_q, k, v, grid, bias, subsample, unpooled_v)
        return ((out + q) if residual else out).flatten(2)

    def logit_bias(self, grid: Grid, q_stride: int, key_stride: int) -> Tensor:
        """Biases by distance of rows and columns, resampled where the image has another size: `(H, Nq, N)`."""
        table = self.attention_biases.unflatten(1, self.bias_grid)  # (H, rows, columns)
        if grid != self.bias_grid:
            table = F.interpolate(table[None], size=grid, mode="bilinear")[0]
        rows, columns = (torch.arange(length, device=table.device) for length in grid)
        row_distance = (rows[::q_stride, None] - rows[::key_stride]).abs()
        column_distance = (columns[::q_stride, None] - columns[::key_stride]).abs()
        return table[:, row_distance[:, None, :, None], column_distance[None, :, None, :]].flatten(3).flatten(1, 2)


class LevitAttention(_LevitMixer):
    """Attention within a stage: `forward(x, grid)` maps `(B, N, dim)` to the same."""

    def __init__(
        self,
        design: LevitDesign,
        dim: int,
        num_heads: int,
        key_dim: int,
        act_layer: ActLayer,
        grid: Grid,
    ) -> None:
        value_dim = 2 * key_dim
        qk_dim = key_dim if design.pooling == "feature" else value_dim
        super().__init__(design, num_heads, qk_dim, value_dim, grid)
        self.qkv = LinearNorm(dim, num_heads * (2 * qk_dim + value_dim))
        self.residual_q = design.residual_q and qk_dim == value_dim
        if design.q_pooling == "post":
            self.pool_q, self.norm_q = head_conv(qk_dim), nn.LayerNorm(qk_dim)
        self.proj = self._way_out(dim, act_layer, bn_weight_init=0)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Attend among tokens `(B, N, dim)` of this grid."""
        heads = self.qkv(x).unflatten(-1, (self.num_heads, -1))
        q, k, v = heads.split([self.key_dim, self.key_dim, self.value_dim], dim=-1)  # (B, N, H, D) each
        if self.design.q_pooling == "post":
            q = pool_heads(q, self.pool_q, self.norm_q, grid)
        return self.proj(self._mix(q, k, v, grid, q_stride=1, residual=self.residual_q))


class LevitDownsampleAttention(_LevitMixer):
    """Attention between stages: every second row and column asks all tokens; `(B, N, dim)` to `(B, N', out_dim)`."""

    def __init__(
        self, design: LevitDesign, dim: int, out_dim: int, key_dim: int, act_layer: ActLayer, grid: Grid
    ) -> None:
        if design.q_pooling == "pre":  # LeViT's: narrow q and k
            num_heads, qk_dim, value_dim = dim // key_dim, key_dim, 4 * key_dim
        else:  # q, k and v all 4 * dim wide
            num_heads, qk_dim, value_dim = 2 * dim // key_dim, 2 * key_dim, 2 * key_dim
        super().__init__(design, num_heads, qk_dim, value_dim, grid)
        if design.q_pooling == "pre":
            self.kv = LinearNorm(dim, num_heads * (qk_dim + value_dim))
            self.q = nn.Sequential(OrderedDict(ln=LinearNorm(dim, num_heads * qk_dim)))
        else:
            self.qkv = LinearNorm(dim, 3 * num_heads * qk_dim)
            self.pool_q, self.norm_q = head_conv(qk_dim, stride=2), nn.LayerNorm(qk_dim)
            self.skip = LinearNorm(dim, out_dim)
        self.proj = self._way_out(out_dim, act_layer, bn_weight_init=1)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Attend from the tokens that stay to all tokens `(B, N, dim)` of this grid."""
        if self.design.q_pooling == "pre":
            k, v = self.kv(x).unflatten(-1, (self.num_heads, -1)).split([self.key_dim, self.value_dim], dim=-1)
            q = self.q(slice_tokens(x, grid)).unflatten(-1, (self.num_heads, -1))
            return self.proj(self._mix(q, k, v, grid, q_stride=2, residual=False))
        q, k, v = self.qkv(x).unflatten(-1, (self.num_heads, 3, -1)).unbind(-2)
        q = pool_heads(q, self.pool_q, self.norm_q, grid)
        out = self.proj(self._mix(q, k, v, grid, q_stride=2, residual=self.design.residual_q))
        return out + max_pool_tokens(self.skip(x), grid)
