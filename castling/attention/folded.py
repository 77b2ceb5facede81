"""The inference form of Eq. 9: the same numbers with constants folded and few passes over the tokens.

The output is normalised, so a common factor of its two linear terms is lost: `1/2 V + 1/pi Q (K^T V)` can be
`V + 2/pi Q (K^T V)`. What is left are two products and two sums that scale and add in one pass each.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from castling.attention.forms import heads_at_once, in_place, products_in_place
from castling.attention.heads import inverse_norm
from castling.config import AttentionConfig


def folded_attention(
    q: Tensor, k: Tensor, v: Tensor, own_value: Tensor, local: Tensor | None, config: AttentionConfig, eps: float
) -> Tensor:
    """Normalised linear-angular attention plus the local convolution.

    Args:
        q: queries `(B, Nq, H, D)`, in float32 or better.
        k: keys `(B, N, H, D)`.
        v: values `(B, N, H, Dv)`.
        own_value: each query's own value `(B, Nq, H, Dv)`.
        local: output of the convolution `(B, Nq, H, Dv)`, which may be overwritten; None for no convolution.
        config: value term, reduction and output norm.
        eps: length up to which vectors have no direction.

    Returns:
        `(B, Nq, H, Dv)`.

    Example:
        >>> q, k, v = torch.randn(1, 49, 3, 2, 16).unbind(2)
        >>> out = folded_attention(q, k, v, v, None, AttentionConfig(), 1e-7)
        >>> torch.allclose(out.norm(dim=-1), torch.ones(1, 49, 2))
        True
    """
    num_summed = k.shape[1] if config.reduction == "mean" else 1
    if config.value_term == "sum":
        own_value = v.sum(1, keepdim=True) / num_summed
    linear = head_products(q, k * inverse_norm(k, eps), v)
    overwrite = in_place(q, k, v)
    twice = torch.addcmul(
        own_value, linear, inverse_norm(q, eps), value=2 / math.pi / num_summed, out=linear if overwrite else None
    )
    scale = inverse_norm(twice, 2 * eps) if config.output_norm == "joint" else twice.new_tensor(0.5)
    if local is None:
        return twice.mul_(scale) if overwrite else twice * scale
    return local.addcmul_(twice, scale) if overwrite else torch.addcmul(local, twice, scale)


def head_products(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`q (k^T v)` for every head of token-major tensors `(B, N, H, D)`, which are read where they lie.

    One image is one batched product over its heads, several are one per head over the images.
    """
    if not products_in_place(q, k, v):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # (B, H, N, D)
        return (q @ (k.mT @ v)).transpose(1, 2)
    out = q.new_empty(*q.shape[:-1], v.shape[-1])
    axis = 0 if heads_at_once(q) else 2
    for q_part, k_part, v_part, place in zip(*(_batches(x, axis) for x in (q, k, v, out)), strict=True):
        torch.bmm(q_part, k_part.mT @ v_part, out=place)
    return out


def _batches(x: Tensor, axis: int) -> list[Tensor]:
    """Three-dimensional views for batched products: the heads of one image, or the images of each head."""
    return [part.transpose(0, 1) if axis == 0 else part for part in x.unbind(axis)]
