"""Slow truths, straight from the equations, in float64: what the fast forms are tested against.

Angles and similarities take vectors `(..., N, D)`; attentions take token-major q, k, v `(..., N, H, D)`, build the
whole `N x N` map per head and guard nothing but a division by zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from castling.config import Reduction, Similarity, ValueTerm

Similarities = Callable[[Tensor, Tensor], Tensor]


def cosine_similarity(x: Tensor, y: Tensor) -> Tensor:
    """`<x_i, y_j> / |x_i| |y_j|` for x `(..., N, D)` and y `(..., M, D)`: `(..., N, M)`."""
    x, y = x.double(), y.double()
    lengths = x.norm(dim=-1)[..., :, None] * y.norm(dim=-1)[..., None, :]
    return torch.einsum("...nd,...md->...nm", x, y) / lengths


def spectral_angle(x: Tensor, y: Tensor) -> Tensor:
    """Eq. 4: the angle between x_i and y_j, from 0 to pi."""
    return torch.arccos(cosine_similarity(x, y).clamp(-1, 1))


def angular_kernel(x: Tensor, y: Tensor) -> Tensor:
    """Eq. 5: `1 - angle / pi`, from 0 to 1."""
    return 1 - spectral_angle(x, y) / math.pi


def expansion_coefficient(order: int) -> float:
    """The factor of `c^(2 order + 1)` in Eq. 8, `(2k)! / (2^2k (k!)^2 (2k + 1)) / pi`."""
    return math.comb(2 * order, order) / 4**order / (2 * order + 1) / math.pi


def angular_kernel_expansion(x: Tensor, y: Tensor, order: int) -> Tensor:
    """Eq. 8 up to k = `order`; order 0 leaves the linear-angular terms `1/2 + c / pi`.

    Example:
        >>> x = torch.tensor([[1.0, 0.0]])
        >>> y = torch.tensor([[1.0, 1.0]])
        >>> [round(angular_kernel_expansion(x, y, order).item(), 4) for order in (0, 1, 20)]
        [0.7251, 0.7438, 0.75]
    """
    cosine = cosine_similarity(x, y)
    odd_powers = (expansion_coefficient(k) * cosine ** (2 * k + 1) for k in range(order + 1))
    return 0.5 + torch.stack(list(odd_powers)).sum(0)


def turned(x: Tensor, grid: tuple[int, int], num_prefix_tokens: int = 0) -> Tensor:
    """Rotary positions token by token: pairs of channels as complex numbers, times `e^(i angle)`.

    The first quarter of the channels and the third turn with the row, the others with the column; places lie between
    -1 and 1, and the periods go from 1 to 100.
    """
    rows, columns = grid
    num_periods = x.shape[-1] // 4
    pairs = torch.complex(*x.double().chunk(2, dim=-1))  # (..., N, H, D / 2)
    for token in range(rows * columns):
        row, column = (2 * (token // columns) + 1) / rows - 1, (2 * (token % columns) + 1) / columns - 1
        for i in range(2 * num_periods):
            place, period = (row, i) if i < num_periods else (column, i - num_periods)
            angle = 2 * math.pi * place / 100 ** (period / num_periods)
            pairs[..., num_prefix_tokens + token, :, i] *= complex(math.cos(angle), math.sin(angle))
    return torch.cat([pairs.real, pairs.imag], dim=-1)


def attention(similarity: Similarities, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`sum_j Sim(q_i, k_j) v_j` for every head of token-major tensors."""
    weights = similarity(q.double().transpose(-2, -3), k.double().transpose(-2, -3))  # (..., H, N, M)
    return torch.einsum("...hnm,...mhd->...nhd", weights, v.double())


def softmax_weights(q: Tensor, k: Tensor, similarity: Similarity = "scaled_dot") -> Tensor:
    """Eq. 1's attention map; `dot` and `cosine` are the two readings of Eq. 10's `softmax(Q K^T)`."""
    if similarity == "cosine":
        scores = cosine_similarity(q, k)
    else:
        scores = torch.einsum("...nd,...md->...nm", q, k)
        if similarity == "scaled_dot":
            scores = scores / math.sqrt(q.shape[-1])
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    return weights / weights.sum(-1, keepdim=True)


def masked_softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, threshold: float, similarity: Similarity = "scaled_dot"
) -> Tensor:
    """Eq. 10 times V: softmax weights above the threshold stay, the others are 0."""

    def masked(x: Tensor, y: Tensor) -> Tensor:
        weights = softmax_weights(x, y, similarity)
        return torch.where(weights > threshold, weights, 0.0)

    return attention(masked, q, k, v)


def linear_angular_attention(
    q: Tensor, k: Tensor, v: Tensor, value_term: ValueTerm = "own", reduction: Reduction = "sum"
) -> Tensor:
    """Eq. 9's first two terms, with the map `1/2 I + c/pi` (`own`) or `1/2 + c/pi` (`sum`) written out."""
    num_summed = k.shape[-3] if reduction == "mean" else 1

    def weights(x: Tensor, y: Tensor) -> Tensor:
        linear = cosine_similarity(x, y) / math.pi / num_summed
        if value_term == "sum":
            return 1 / 2 / num_summed + linear
        return torch.eye(y.shape[-2], dtype=y.dtype) / 2 + linear

    return attention(weights, q, k, v)


def mean_centred_weights(q: Tensor, k: Tensor) -> Tensor:
    """ViTALiTy: `exp(x)` as `1 + x` with mean-centred keys, rows divided by their sum."""
    centred = k - k.mean(-2, keepdim=True)
    weights = 1 + torch.einsum("...nd,...md->...nm", q, centred) / math.sqrt(q.shape[-1])
    return weights / weights.sum(-1, keepdim=True)


def softmax_kernel_weights(q: Tensor, k: Tensor) -> Tensor:
    """Efficient Attention: softmax over the channels of q, over the tokens of k."""
    return torch.einsum("...nd,...md->...nm", q.softmax(-1), k.softmax(-2))


def relu_s_weights(q: Tensor, k: Tensor) -> Tensor:
    """ReLU-S: `relu(q).relu(k)`."""
    return torch.einsum("...nd,...md->...nm", q.relu(), k.relu())


def relu_e_weights(q: Tensor, k: Tensor) -> Tensor:
    """ReLU-E: `relu(q).relu(k)`, rows divided by their sum; a row of zeros stays zero."""
    weights = relu_s_weights(q, k)
    return weights / weights.sum(-1, keepdim=True).clamp_min(1e-7)


ATTENTIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "linear_angular": linear_angular_attention,
    "mean_centred": lambda q, k, v: attention(mean_centred_weights, q, k, v),
    "softmax_kernel": lambda q, k, v: attention(softmax_kernel_weights, q, k, v),
    "cosine": lambda q, k, v: attention(cosine_similarity, q, k, v),
    "relu_s": lambda q, k, v: attention(relu_s_weights, q, k, v),
    "relu_e": lambda q, k, v: attention(relu_e_weights, q, k, v),
    "angular": lambda q, k, v: attention(angular_kernel, q, k, v),
    "softmax": lambda q, k, v: attention(softmax_weights, q, k, v),
}
