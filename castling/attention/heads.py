"""How tokens reach an equation that is written for one head: without copies and in safe precision.

The qkv projection lays tokens out as `(B, N, 3, H, D)`. All functions of this package take the strided views
`(..., N, H, D)` of it as they are; a matrix product over `(B, H)` at once would have to copy them first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

from castling.attention.forms import heads_at_once
from castling.config import OutputNorm


def per_head(equation: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, *others: Tensor) -> Tensor:
    """Apply an attention equation to every head of token-major tensors.

    `heads_at_once` says whether it is applied once or head by head. Half-precision tokens are computed and returned in
    float32, because a sum over tokens can exceed the range of float16: normalise first, then cast.

    Args:
        equation: map of q `(..., Nq, D)`, k `(..., N, D)`, v `(..., N, Dv)`, the others and eps, up to which norms and
            row sums count as zero, to `(..., Nq, Dv)`.
        q: queries `(..., Nq, H, D)`.
        k: keys `(..., N, H, D)`.
        v: values `(..., N, H, Dv)`.
        *others: more token-major tensors.

    Returns:
        Tokens `(..., Nq, H, Dv)` in float32 or better.

    Raises:
        ValueError: if the shapes do not fit together.
    """
    check_tokens(q, k, v)
    eps = smallest_norm(q.dtype)
    with autocast_off(q):
        tokens = [promote(x) for x in (q, k, v, *others)]
        if heads_at_once(q):
            return equation(*(x.transpose(-2, -3) for x in tokens), eps=eps).transpose(-2, -3)
        heads = zip(*(x.unbind(-2) for x in tokens), strict=True)
        return torch.stack([equation(*head, eps=eps) for head in heads], dim=-2)


def unit(x: Tensor, eps: float) -> Tensor:
    """Scale vectors to length one along the last axis; those no longer than `eps` become zero."""
    return x * inverse_norm(x, eps)


def inverse_norm(x: Tensor, eps: float) -> Tensor:
    """`1 / |x|` along the last axis, which is kept; 0 for vectors no longer than `eps`, which have no direction.

    So a zero token passes on zero, and a gradient of zero, instead of dividing by nothing.
    """
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return F.threshold(norm, eps, math.inf).reciprocal()


def output_length(norm: OutputNorm, dim: int) -> float | None:
    """How long the output of a head with `dim` channels is made before the convolution is added; None for as it is."""
    return {"joint": 1.0, "rms": math.sqrt(dim)}.get(norm)


def smallest_norm(dtype: torch.dtype) -> float:
    """Tokens up to this length have no direction: its inverse bounds the gradient, which float16 must hold."""
    return 1e-3 if dtype == torch.float16 else 1e-7


def promote(x: Tensor) -> Tensor:
    """Half precision to float32, everything else as it is."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def autocast_off(x: Tensor) -> AbstractContextManager[object]:
    """A context in which autocast leaves the dtype of products alone; nothing at all where autocast is off."""
    device = x.device.type
    if device != "meta" and torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


def check_tokens(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Refuse tensors that are not token-major queries, keys and values of the same heads.

    Raises:
        ValueError: names the shapes.
    """
    fits = (
        min(q.ndim, k.ndim, v.ndim) >= 3
        and q.shape[:-3] == k.shape[:-3] == v.shape[:-3]
        and q.shape[-2:] == k.shape[-2:]
        and k.shape[-3:-1] == v.shape[-3:-1]
    )
    if not fits:
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in (("q", q), ("k", k), ("v", v)))
        raise ValueError(f"expected q (..., Nq, H, D), k (..., N, H, D) and v (..., N, H, Dv); got {shapes}")
