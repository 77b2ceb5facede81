"""Softmax attention of LeViT, MViTv2 and hybrids at its best, for inference: a slow baseline makes any model look fast.

So attention is fused wherever it can be, keys and values are pooled where the host pools them, and whatever does not
depend on the image is computed once.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import register_notrace_module
from timm.models.mvitv2 import MultiScaleAttention, MultiScaleVit
from torch import Tensor, nn

from castling.attention import Grid, attend
from castling.attention.grid import strided
from castling.models.hybrid import HybridNet, MapTransformer
from castling.models.levit import CastlingLevit
from castling.models.levit_attention import LevitAttention, LevitDownsampleAttention
from castling.models.pooling import expand_heads, pool_heads, slice_tokens


def plain_levit(host: CastlingLevit, fused: bool = True) -> CastlingLevit:
    """LeViT as it infers: with attention biases laid out for its image size.

    Args:
        host: LeViT in the design `PLAIN_LEVIT`; changed in place.
        fused: attention through `F.scaled_dot_product_attention`, with the biases as its mask.
    """
    for owner in list(host.modules()):
        for name, child in list(owner.named_children()):
            if isinstance(child, (LevitAttention, LevitDownsampleAttention)):
                setattr(owner, name, PlainLevitAttention(child, fused))
    return host.eval()


@register_notrace_module  # in the graphs of torch.fx it is one node: the biases depend on the grid
class PlainLevitAttention(nn.Module):
    """LeViT's own attention with its biases laid out once: `forward(x, grid)` as that of the host.

    Args:
        host: an attention of a stage or of a down-sampler in the design `PLAIN_LEVIT`.
        fused: attention through `F.scaled_dot_product_attention`.
    """

    bias: Tensor

    def __init__(self, host: LevitAttention | LevitDownsampleAttention, fused: bool) -> None:
        super().__init__()
        self.host = host
        self.softmax = fused_softmax if fused else explicit_softmax
        self.stride = 2 if isinstance(host, LevitDownsampleAttention) else 1
        with torch.no_grad():
            bias = host.logit_bias(host.bias_grid, self.stride, key_stride=1).contiguous()  # (H, Nq, N)
        self.register_buffer("bias", bias, persistent=False)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Attend among tokens `(B, N, dim)` of this grid."""
        host = self.host
        heads, widths = (host.num_heads, -1), (host.key_dim, host.value_dim)
        if isinstance(host, LevitDownsampleAttention):
            k, v = host.kv(x).unflatten(-1, heads).split(widths, dim=-1)
            q = host.q(slice_tokens(x, grid, self.stride)).unflatten(-1, heads)
        else:
            q, k, v = host.qkv(x).unflatten(-1, heads).split((host.key_dim, *widths), dim=-1)  # (B, N, H, D) each
        bias = self.bias if grid == host.bias_grid else host.logit_bias(grid, self.stride, key_stride=1)
        return host.proj(self.softmax(q, k, v, bias).flatten(2))


def fused_softmax(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Eq. 1 with narrow keys and a bias, in the shapes that torch fuses: one width, and a mask of four axes.

    In any other shape `F.scaled_dot_product_attention` writes its map out without saying so. The zeros that widen q and
    k count as MACs.

    Args:
        q: queries `(B, Nq, H, D)`.
        k: keys `(B, N, H, D)`.
        v: values `(B, N, H, Dv)` with Dv at least D.
        bias: summand of the logits, `(H, Nq, N)`.

    Returns:
        `(B, Nq, H, Dv)`.
    """
    scale, zeros = q.shape[-1] ** -0.5, v.shape[-1] - q.shape[-1]
    q, k, v = (x.transpose(-2, -3) for x in (F.pad(q, (0, zeros)), F.pad(k, (0, zeros)), v))  # (B, H, N, Dv)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias[None], scale=scale).transpose(-2, -3)


def explicit_softmax(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """Eq. 1 with its map in memory, as networks wrote it before there was a fused form.

    Args:
        q: queries `(B, Nq, H, D)`.
        k: keys `(B, N, H, D)`.
        v: values `(B, N, H, Dv)`.
        bias: summand of the logits, `(H, Nq, N)`.

    Returns:
        `(B, Nq, H, Dv)`.

    Example:
        >>> q, k, v = torch.randn(1, 49, 3, 2, 16).unbind(2)
        >>> torch.allclose(explicit_softmax(q, k, v), attend(q, k, v, "softmax"), atol=1e-6)
        True
    """
    q, k, v = (x.transpose(-2, -3) for x in (q, k, v))  # (B, H, N, D)
    logits = (q * q.shape[-1] ** -0.5) @ k.mT
    weights = (logits if bias is None else logits + bias).softmax(-1)
    return (weights @ v).transpose(-2, -3)


def unfuse_hybrid(host: HybridNet) -> HybridNet:
    """Give the transformers of LCNet-ViT or ESNet-ViT attention with its map in memory, with the weights they have.

    Args:
        host: a network with softmax attention and nothing of ours; changed in place.
    """
    for module in host.modules():
        if isinstance(module, MapTransformer):
            module.attn = ExplicitAttention(module.attn)
    return host


class ExplicitAttention(nn.Module):
    """Softmax attention through `explicit_softmax`: `forward(x, grid)` as that of the host.

    Args:
        host: the `CastlingAttention` whose projections it takes.
    """

    def __init__(self, host: Any) -> None:
        super().__init__()
        self.num_heads, self.qkv, self.proj = host.num_heads, host.qkv, host.proj

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Attend among tokens `(B, N, dim)`; softmax has no use for their grid."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).unbind(2)  # (B, N, H, D) each
        return self.proj(explicit_softmax(q, k, v).flatten(2))


def fuse_mvitv2(host: MultiScaleVit) -> MultiScaleVit:
    """Give timm's MViTv2 fused attention after its pooling, with the weights that it has.

    Args:
        host: a network without relative positions; changed in place.

    Raises:
        ValueError: if it has relative positions or class tokens, which the fused form does not know.
    """
    for stage in host.stages:
        for block in stage.blocks:
            if block.attn.rel_pos_type != "none" or block.attn.has_cls_token:
                raise ValueError("fused attention of MViTv2 takes no relative positions and no class token")
            block.attn = FusedPooledAttention(block.attn)
    return host


@register_notrace_module  # in the graphs of torch.fx it is one node: the convolutions depend on their weights' shape
class FusedPooledAttention(nn.Module):
    """MViTv2's attention among pooled queries, keys and values, fused, with the pooled queries added.

    Args:
        host: timm's attention, whose layers it takes. They convolve channels-last here, which is faster than timm's
            order and gives the same numbers.
    """

    def __init__(self, host: MultiScaleAttention) -> None:
        super().__init__()
        self.num_heads, self.residual_pooling = host.num_heads, host.residual_pooling
        self.qkv, self.proj = host.qkv, host.proj
        self.pool_q, self.pool_k, self.pool_v = host.pool_q, host.pool_k, host.pool_v
        self.norm_q, self.norm_k, self.norm_v = host.norm_q, host.norm_k, host.norm_v
        for conv in (self.pool_q, self.pool_k, self.pool_v):
            expand_heads(conv, host.num_heads)

    def forward(self, x: Tensor, feat_size: Grid) -> tuple[Tensor, Grid]:
        """Attend among tokens `(B, N, dim)` of this grid; returns them with their new grid."""
        grid = (feat_size[0], feat_size[1])
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).unbind(2)  # (B, N, H, D) each
        q = pool_heads(q, self.pool_q, self.norm_q, grid)
        k = pool_heads(k, self.pool_k, self.norm_k, grid)
        v = pool_heads(v, self.pool_v, self.norm_v, grid)
        out = attend(q, k, v, "softmax")
        out = out + q if self.residual_pooling else out
        return self.proj(out.flatten(2)), strided(grid, self.pool_q.stride[0])
