"""The auxiliary branch: softmax attention whose small entries are cut (Eq. 10), there only while training.

It works on the same q, k, v as the linear attention and owns no parameters, so that dropping it changes the graph and
never the state dict.
"""

from __future__ import annotations

import math
from typing import get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from castling.attention.heads import autocast_off, check_tokens, promote, smallest_norm, unit
from castling.attention.threshold import absolute_cut
from castling.config import Similarity, check_choice, check_threshold


class AuxiliarySoftmax(nn.Module):
    """Masked softmax attention, `Mask(softmax(q.k)) V`, with `Mask(p) = p` where p exceeds the threshold, else 0.

    Args:
        threshold: the cut; settable at any time, so that a schedule can move it.
        relative: whether `threshold` counts in units of 1/N.
        similarity: `scaled_dot` is the released code's `q.k / sqrt(D)`, `dot` Eq. 10 as printed, `cosine` Eq. 10 with
            the unit vectors that Eq. 8 writes Q and K for.
        attn_drop: dropout on the masked map.

    Attributes:
        occupancy: share of entries that survive the mask, per head `(H,)`, in the last forward; None before.

    Raises:
        ValueError: for a threshold outside its range or an unknown similarity.

    Example:
        >>> q, k, v = torch.randn(1, 64, 3, 2, 16).unbind(2)
        >>> branch = AuxiliarySoftmax(threshold=1.0)
        >>> branch(q, k, v).abs().max().item(), branch.occupancy.tolist()
        (0.0, [0.0, 0.0])
    """

    def __init__(
        self,
        threshold: float = 0.02,
        relative: bool = False,
        similarity: Similarity = "scaled_dot",
        attn_drop: float = 0.0,
    ) -> None:
        super().__init__()
        check_choice("similarity", similarity, get_args(Similarity))
        self.relative = relative
        self.similarity = similarity
        self.set_threshold(threshold)
        self.attn_drop = nn.Dropout(attn_drop)
        self.occupancy: Tensor | None = None

    def set_threshold(self, threshold: float) -> None:
        """Move the cut.

        Raises:
            ValueError: if it lies outside its range; the old one then stays.
        """
        check_threshold(threshold, self.relative)
        self.threshold = threshold

    def forward(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
        """Attend from token-major q `(..., Nq, H, D)` to k, v `(..., N, H, D)`; returns float32 or better.

        A bias `(H, Nq, N)` joins the logits. Training makes no map once the cut is 1, which no weight exceeds;
        elsewhere there is one, so that what is counted and measured is a network with its branch.
        """
        check_tokens(q, k, v)
        eps = smallest_norm(q.dtype)
        cut = absolute_cut(self.threshold, k.shape[-3], self.relative)
        if self.training and cut >= 1:
            self.occupancy = torch.zeros(q.shape[-2], device=q.device)
            return promote(v).new_zeros(*q.shape[:-1], v.shape[-1])
        with autocast_off(q):
            q, k, v = (promote(x).transpose(-2, -3) for x in (q, k, v))  # (..., H, N, D)
            if self.similarity == "cosine":
                q, k = unit(q, eps), unit(k, eps)
            scale = 1 / math.sqrt(q.shape[-1]) if self.similarity == "scaled_dot" else 1.0
            logits = (q * scale) @ k.mT  # (..., H, Nq, N)
            weights = (logits if bias is None else logits + bias).softmax(-1)
            weights = F.threshold(weights, cut, 0.0)
            if not torch.compiler.is_exporting():
                self.occupancy = _share_above_zero(weights.detach())
            return (self.attn_drop(weights) @ v).transpose(-2, -3)

    def extra_repr(self) -> str:
        """What print shows."""
        return f"threshold={self.threshold}{'/N' if self.relative else ''}, similarity={self.similarity!r}"


def branches(model: nn.Module) -> dict[str, AuxiliarySoftmax]:
    """The auxiliary branches by the name of their attention; none in a castled model or a baseline.

    Example:
        >>> from castling import CastlingAttention
        >>> list(branches(nn.Sequential(nn.Identity(), CastlingAttention(64, 4))))
        ['1']
    """
    named = model.named_modules()
    return {name.rpartition(".")[0]: module for name, module in named if isinstance(module, AuxiliarySoftmax)}


def _share_above_zero(weights: Tensor) -> Tensor:
    """Share of non-zero entries per head, `(..., H, Nq, N)` to `(H,)`."""
    others = [axis for axis in range(weights.ndim) if axis != weights.ndim - 3]
    return (weights > 0).float().mean(others)  # count_nonzero would make 64-bit numbers of them
