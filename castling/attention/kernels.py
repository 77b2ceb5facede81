"""Every similarity of the paper's kernel ablation behind one call and in one table.

The six linear kernels cost `2 N D^2` per head. The exact angular kernel (Eq. 5) and softmax (Eq. 1) cost `2 N^2 D` and
stand here as the truth and the baseline.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from castling.attention.heads import check_tokens, per_head, unit
from castling.attention.linear_angular import linear_angular_attention
from castling.config import check_choice


def _mean_centred(q: Tensor, k: Tensor, v: Tensor, eps: float) -> Tensor:
    """ViTALiTy: softmax to first order, `1 + q.k`, with keys centred so that every row sums to N."""
    num_tokens, dim = k.shape[-2:]
    kv = (k - k.mean(-2, keepdim=True)).mT @ v
    return v.mean(-2, keepdim=True) + q @ (kv / (num_tokens * math.sqrt(dim)))


def _softmax_kernel(q: Tensor, k: Tensor, v: Tensor, eps: float) -> Tensor:
    """Efficient Attention: softmax over the channels of q and over the tokens of k."""
    return q.softmax(-1) @ (k.softmax(-2).mT @ v)


def _cosine(q: Tensor, k: Tensor, v: Tensor, eps: float) -> Tensor:
    """Hydra: unit q and k, nothing else."""
    return unit(q, eps) @ (unit(k, eps).mT @ v)


def _relu_s(q: Tensor, k: Tensor, v: Tensor, eps: float) -> Tensor:
    """ReLU features in place of the whole softmax: no division."""
    return q.relu() @ (k.relu().mT @ v)


def _relu_e(q: Tensor, k: Tensor, v: Tensor, eps: float) -> Tensor:
    """EfficientViT: ReLU features in place of the exponential, each row divided by its sum."""
    q, k = q.relu(), k.relu()
    row_sum = q @ k.sum(-2, keepdim=True).mT
    return q @ (k.mT @ v) / row_sum.clamp_min(eps)


def _angular(q: Tensor, k: Tensor, v: Tensor, eps: float) -> Tensor:
    """Eq. 5 itself, `1 - angle/pi`, quadratic. At parallel vectors its gradient is cut where it would be infinite."""
    largest = 1 - torch.finfo(q.dtype).eps
    cosine = (unit(q, eps) @ unit(k, eps).mT).clamp(-largest, largest)
    return (1 - torch.acos(cosine) / math.pi) @ v


def _softmax(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, dropout_p: float = 0.0) -> Tensor:
    """Eq. 1 through the fused kernel of torch, in the tokens' own dtype; a bias `(H, Nq, N)` joins the logits."""
    check_tokens(q, k, v)
    q, k, v = (x.transpose(-2, -3) for x in (q, k, v))  # (..., H, N, D)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout_p).transpose(-2, -3)


@dataclass(frozen=True)
class Kernel:
    """One row of the table.

    Args:
        attend: token-major attention, `(q, k, v, **options)` to `(..., Nq, H, Dv)`.
        linear: whether its cost is linear in the number of tokens.
        label: its name in the paper's kernel ablation, or the equation.
    """

    attend: Callable[..., Tensor]
    linear: bool
    label: str


KERNELS: dict[str, Kernel] = {
    "linear_angular": Kernel(linear_angular_attention, True, "Lin.-Angular"),
    "mean_centred": Kernel(partial(per_head, _mean_centred), True, "MC"),
    "softmax_kernel": Kernel(partial(per_head, _softmax_kernel), True, "Softmax"),
    "cosine": Kernel(partial(per_head, _cosine), True, "Cosine"),
    "relu_s": Kernel(partial(per_head, _relu_s), True, "ReLU-S"),
    "relu_e": Kernel(partial(per_head, _relu_e), True, "ReLU-E"),
    "angular": Kernel(partial(per_head, _angular), False, "Eq. 5"),
    "softmax": Kernel(_softmax, False, "Eq. 1"),
}


def attend(q: Tensor, k: Tensor, v: Tensor, kernel: str = "linear_angular", **options: object) -> Tensor:
    """Attention with the kernel of this name.

    Args:
        q: queries `(..., Nq, H, D)`.
        k: keys `(..., N, H, D)`.
        v: values `(..., N, H, Dv)`.
        kernel: a name in `KERNELS`.
        **options: options of `linear_angular_attention`, or `bias` and `dropout_p` for `softmax`.

    Returns:
        `(..., Nq, H, Dv)`.

    Raises:
        ValueError: for an unknown kernel, with the nearest name, or shapes that do not fit.

    Example:
        >>> q, k, v = torch.randn(1, 49, 3, 2, 16).unbind(2)
        >>> attend(q, k, v, "relu_e").shape
        torch.Size([1, 49, 2, 16])
    """
    check_choice("kernel", kernel, KERNELS)
    return KERNELS[kernel].attend(q, k, v, **options)
