"""The softmax networks that Castling models are measured against, at their best.

There are two: the same network with softmax attention, which tells what the attention gives, and the plain host that
the paper started from, without the convolutions that Castling adds, which tells what a user gets. A slow baseline makes
any model look fast. So attention is fused wherever it can be, keys and values are pooled where the host pools them, and
whatever does not depend on the image is computed once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import timm
import torch
import torch.nn.functional as F
from timm.models.mvitv2 import MultiScaleAttention, MultiScaleVit, model_cfgs
from torch import Tensor, nn

from castling.attention import Grid, attend
from castling.attention.grid import strided
from castling.config import AttentionConfig, check_choice
from castling.models import deit, levit, mvitv2
from castling.models.levit import PLAIN_LEVIT, CastlingLevit
from castling.models.levit_attention import LevitAttention, LevitDesign, LevitDownsampleAttention
from castling.models.pooling import expand_heads, pool_heads, slice_tokens

NAMES = (*deit.SIZES, *levit.SIZES, *mvitv2.DEPTHS)


def softmax_twin(name: str, **options: Any) -> nn.Module:
    """A Castling model with plain softmax attention, fused, and all else as it is; in evaluation mode.

    Args:
        name: of the Castling model.
        **options: as for it.

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
        name: of the Castling model. DeiT and MViTv2 are timm's, LeViT is ours in its plain design.
        fused: attention through `F.scaled_dot_product_attention`; otherwise with its N x N map written out. A fused
            MViTv2 has no relative positions, for which it would need that map; a fused LeViT widens its keys to its
            values, and so counts more MACs than LeViT has.
        **options: as for the Castling model: `img_size`, `num_classes`, `patch_size` of DeiT, depths. Positions are
            made for `img_size`, so give the size that is measured.

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
    cfg = model_cfgs[name.removeprefix("castling_")]
    depths = options.pop("depths", cfg.depths)
    cfg = replace(cfg, depths=depths, rel_pos_type="none" if fused else cfg.rel_pos_type)
    host = MultiScaleVit(cfg, **options)
    return (fuse_mvitv2(host) if fused else host).eval()


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


class PlainLevitAttention(nn.Module):
    """LeViT's own attention with its biases laid out once: `forward(x, grid)` as that of the host.

    Args:
        host: an attention of a stage or of a down-sampler in the design `PLAIN_LEVIT`.
        fused: through `F.scaled_dot_product_attention`.
    """

    bias: Tensor

    def __init__(self, host: LevitAttention | LevitDownsampleAttention, fused: bool) -> None:
        super().__init__()
        self.host, self.fused = host, fused
        self.stride = 2 if isinstance(host, LevitDownsampleAttention) else 1
        with torch.no_grad():
            bias = host._bias(host.bias_grid, self.stride, key_stride=1).contiguous()  # (H, Nq, N)
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
        bias = self.bias if grid == host.bias_grid else host._bias(grid, self.stride, 1)
        out = (fused_softmax if self.fused else explicit_softmax)(q, k, v, bias)
        return host.proj(out.flatten(2))


def fused_softmax(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Eq. 1 with narrow keys and a bias, in the shapes that torch fuses: one width, and a mask of four axes.

    In any other shape `F.scaled_dot_product_attention` writes its map out without saying so. The zeros that widen q and
    k count as MACs.

    Args:
        q: queries `(B, Nq, H, D)`.
        k: keys `(B, N, H, D)`.
        v: values `(B, N, H, Dv)` with Dv at least D.
        bias: added to the logits, `(H, Nq, N)`.

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
        bias: added to the logits, `(H, Nq, N)`.

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


def fuse_mvitv2(host: MultiScaleVit) -> MultiScaleVit:
    """Give timm's MViTv2 fused attention after its pooling, with the weights that it has.

    Args:
        host: without relative positions; changed in place.

    Raises:
        ValueError: if it has relative positions or class tokens, which the fused form does not know.
    """
    for stage in host.stages:
        for block in stage.blocks:
            if block.attn.rel_pos_type != "none" or block.attn.has_cls_token:
                raise ValueError("fused attention of MViTv2 takes no relative positions and no class token")
            block.attn = FusedPooledAttention(block.attn)
    return host


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
