"""timm's MViTv2: q, k and v are pooled after their projection, positions are relative and depend on the queries.

The pooling stays as the host has it. A query's own value and the local convolution come from the unpooled values, so
that every query has one.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from timm.models.mvitv2 import cal_rel_pos_type
from torch import Tensor, nn

from castling.attention import Grid
from castling.attention.grid import strided
from castling.config import AttentionConfig
from castling.conversion.adapters.adapter import Adapter, Site
from castling.conversion.converted import ConvertedAttention
from castling.models.pooling import pool_heads, slice_tokens


class MvitAttention(ConvertedAttention):
    """In place of `MultiScaleAttention`: `forward(x, feat_size)` gives tokens `(B, N', dim)` and their grid."""

    qkv: nn.Module
    pool_q: nn.Conv2d | None
    pool_k: nn.Conv2d | None
    pool_v: nn.Conv2d | None
    norm_q: nn.Module | None
    norm_k: nn.Module | None
    norm_v: nn.Module | None
    rel_pos_h: Tensor
    rel_pos_w: Tensor
    proj: nn.Module

    def __init__(self, host: Any, config: AttentionConfig) -> None:
        super().__init__(host, host.num_heads, config, int(host.has_cls_token))
        self.head_dim = host.head_dim
        self.num_prefix_tokens = int(host.has_cls_token)
        self.relative = host.rel_pos_type == "spatial"
        self.residual_pooling = host.residual_pooling

    def forward(self, x: Tensor, feat_size: list[int]) -> tuple[Tensor, list[int]]:
        """Attend from the pooled queries to the pooled keys."""
        grid = (feat_size[0], feat_size[1])
        q, k, unpooled_v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).unbind(2)  # (B, N, H, D) each
        q, q_grid = self._pool(q, self.pool_q, self.norm_q, grid)
        k, k_grid = self._pool(k, self.pool_k, self.norm_k, grid)
        v, _ = self._pool(unpooled_v, self.pool_v, self.norm_v, grid)
        bias = partial(self._bias, q, q_grid, k_grid) if self.relative else None
        subsample = partial(self._at_queries, grid=grid)
        out = self.attend(q, k, v, grid, bias, subsample, unpooled_v)
        out = out + q if self.residual_pooling else out
        return self.proj(out.flatten(2)), list(q_grid)

    def _pool(self, x: Tensor, pool: nn.Conv2d | None, norm: nn.Module | None, grid: Grid) -> tuple[Tensor, Grid]:
        """Pool each head behind the prefix tokens, then normalise all: `(B, N, H, D)` to `(B, N', H, D)`."""
        if pool is not None:
            prefix, tokens = x[:, : self.num_prefix_tokens], x[:, self.num_prefix_tokens :]
            x = torch.cat((prefix, pool_heads(tokens, pool, nn.Identity(), grid)), dim=1)
            grid = strided(grid, pool.stride[0])
        return (x if norm is None else norm(x)), grid

    def _at_queries(self, tokens: Tensor, grid: Grid) -> Tensor:
        """The tokens at the queries' places; prefix tokens keep theirs."""
        if self.pool_q is None or self.pool_q.stride[0] == 1:
            return tokens
        prefix, rest = tokens[:, : self.num_prefix_tokens], tokens[:, self.num_prefix_tokens :]
        return torch.cat((prefix, slice_tokens(rest, grid, self.pool_q.stride[0])), dim=1)

    def _bias(self, q: Tensor, q_grid: Grid, k_grid: Grid) -> Tensor:
        """What relative positions add to the logits `(B, H, Nq, N)`: zero for prefix tokens."""
        batch, num_queries, num_heads, _ = q.shape
        num_keys = k_grid[0] * k_grid[1] + self.num_prefix_tokens
        logits = q.new_zeros(batch, num_heads, num_queries, num_keys)
        with_cls = self.num_prefix_tokens > 0
        return cal_rel_pos_type(
            logits, q.transpose(1, 2), with_cls, list(q_grid), list(k_grid), self.rel_pos_h, self.rel_pos_w
        )


def _refuses(site: Site, config: AttentionConfig) -> str | None:
    host: Any = site.module
    if "PoolFirst" in type(host).__name__:
        return "pooling before the projection (pool_first)"
    if host.mode != "conv":
        return f"pooling of mode {host.mode!r}; only 'conv', one filter for all heads, is known"
    return None


def _notes(site: Site, config: AttentionConfig) -> list[str]:
    relative = site.module.rel_pos_type == "spatial"
    return ["relative positions go to softmax only and end with it"] if relative else []


ADAPTER = Adapter(
    family="timm MViTv2",
    hosts=("timm.models.mvitv2:MultiScaleAttention", "timm.models.mvitv2:MultiScaleAttentionPoolFirst"),
    build=lambda site, config: MvitAttention(site.module, config),
    refuses=_refuses,
    notes=_notes,
)
