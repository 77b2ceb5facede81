"""The inference form of Eq. 9: the same numbers with constants folded and few passes over the tokens.

The output is normalised, so a common factor of its two linear terms is lost: `1/2 V + 1/pi Q (K^T V)` can be
`V + 2/pi Q (K^T V)`. What is left are two products and two sums that scale and add in one pass each. Mean-centred keys
are folded as well.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from castling.attention import native
from castling.attention.forms import heads_at_once, in_place, products_in_place
from castling.attention.heads import inverse_norm, output_length
from castling.attention.rotary import rotate
from castling.config import AttentionConfig

FOLDED = ("linear_angular", "mean_centred")
HALF = 0.5  # what the doubled form is still to be multiplied with


def folded_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    own_value: Tensor,
    local: Tensor | None,
    config: AttentionConfig,
    eps: float,
    table: Tensor | None = None,
    taps: Tensor | None = None,
) -> Tensor:
    """Linear attention, normalised or not, plus the local convolution.

    Args:
        q: queries `(B, Nq, H, D)`, in float32 or better.
        k: keys `(B, N, H, D)`.
        v: values `(B, N, H, Dv)`.
        own_value: each query's own value `(B, Nq, H, Dv)`.
        local: output of the convolution `(B, Nq, H, Dv)`, which may be overwritten; None for no convolution.
        config: a kernel in `FOLDED`, value term, reduction and output norm.
        eps: length up to which vectors have no direction.
        table: cosines and sines by which q and k are still to be turned.
        taps: filters along the tokens, `(H * Dv, 1, taps)`, in the place of `local`, where `native.can_attend`.

    Returns:
        `(B, Nq, H, Dv)`.

    Example:
        >>> q, k, v = torch.randn(1, 49, 3, 2, 16).unbind(2)
        >>> out = folded_attention(q, k, v, v, None, AttentionConfig(), 1e-7)
        >>> torch.allclose(out.norm(dim=-1), torch.ones(1, 49, 2))
        True
    """
    if native.can_attend(q, k, v):
        return native.attention(q, k, v, *_own_and_terms(k, v, own_value, config, eps), table, taps, local)
    if table is not None:
        q, k = rotate(q, table), rotate(k, table)
    if config.kernel == "mean_centred":
        total, factor = _mean_centred(q, k, v), 1.0
    else:
        total, factor = _twice_linear_angular(q, k, v, own_value, config, eps), HALF
    length = output_length(config.output_norm, v.shape[-1])
    scale = total.new_tensor(factor) if length is None else inverse_norm(total, eps / factor) * length
    overwrite = in_place(q, k, v)
    if local is None:
        return total.mul_(scale) if overwrite else total * scale
    return local.addcmul_(total, scale) if overwrite else torch.addcmul(local, total, scale)


def _own_and_terms(
    k: Tensor, v: Tensor, own_value: Tensor, config: AttentionConfig, eps: float
) -> tuple[Tensor | None, native.Terms]:
    """The same equations for the native form: each query's own value, and factors."""
    num_tokens, length = k.shape[1], output_length(config.output_norm, v.shape[-1])
    centred = config.kernel == "mean_centred"
    num_summed = num_tokens if centred or config.reduction == "mean" else 1
    factor = 1.0 if centred else HALF
    terms = native.Terms(
        of_products=(1 / math.sqrt(k.shape[-1]) if centred else 2 / math.pi) / num_summed,
        of_sum=1 / num_summed,
        centred=centred,
        scale=factor if length is None else length,
        normalised=length is not None,
        eps=eps,
        eps_out=eps / factor,
    )
    return (None if centred or config.value_term == "sum" else own_value), terms


def _twice_linear_angular(
    q: Tensor, k: Tensor, v: Tensor, own_value: Tensor, config: AttentionConfig, eps: float
) -> Tensor:
    num_summed = _count(k) if config.reduction == "mean" else 1
    if config.value_term == "sum":
        own_value = v.sum(1, keepdim=True) / num_summed
    linear = head_products(q, k * inverse_norm(k, eps), v)
    if isinstance(num_summed, Tensor):
        return torch.addcmul(own_value, linear, inverse_norm(q, eps) / num_summed, value=2 / math.pi)
    out = linear if in_place(q, k, v) else None
    return torch.addcmul(own_value, linear, inverse_norm(q, eps), value=2 / math.pi / num_summed, out=out)


def _mean_centred(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    num_tokens, dim = _count(k), k.shape[-1]
    linear = head_products(q, k - k.mean(1, keepdim=True), v)
    if isinstance(num_tokens, Tensor):
        return v.mean(1, keepdim=True) + linear / (num_tokens * math.sqrt(dim))
    out = linear if in_place(q, k, v) else None
    return torch.add(v.mean(1, keepdim=True), linear, alpha=1 / (num_tokens * math.sqrt(dim)), out=out)


def _count(k: Tensor) -> int | Tensor:
    """The number of tokens; a tensor `(B, 1, H, 1)` in a graph that leaves it free, as engines want it."""
    if isinstance(k.shape[1], int):
        return k.shape[1]
    return torch.ones_like(k[..., :1]).sum(1, keepdim=True)


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
