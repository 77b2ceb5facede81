"""Varifocal loss (VarifocalNet, Eq. 2) and distribution focal loss (Generalized Focal Loss, Eq. 6)."""

from __future__ import annotations

import torch
from torch import Tensor

ALPHA, GAMMA = 0.75, 2.0
EPS = 1e-7  # of a probability, before its logarithm


def varifocal(p: Tensor, q: Tensor) -> Tensor:
    """`-q (q log p + (1 - q) log(1 - p))` where the quality q is positive, and `-alpha p^gamma log(1 - p)` elsewhere.

    Args:
        p: predicted probabilities of any shape.
        q: how good the box is that was found there, of the same shape; 0 for other classes and background.

    Example:
        >>> varifocal(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0]))
        tensor([0.6931, 0.1300])
    """
    p = p.clamp(EPS, 1 - EPS)
    log_p, log_rest = p.log(), (1 - p).log()
    return -torch.where(q > 0, q * (q * log_p + (1 - q) * log_rest), ALPHA * p**GAMMA * log_rest)


def distribution_focal(distributions: Tensor, y: Tensor) -> Tensor:
    """`-((y_{i+1} - y) log S_i + (y - y_i) log S_{i+1})`, with `y_i = i` and i the whole part of y.

    Args:
        distributions: logits of S `(..., reg_max + 1)`.
        y: wanted distances `(...)`; those outside `[0, reg_max)` are brought to its nearest end.

    Example:
        >>> distribution_focal(torch.zeros(1, 8), torch.tensor([2.5]))  # log 8
        tensor([2.0794])
    """
    y = y.clamp(0, distributions.shape[-1] - 1 - 0.1)[..., None]  # 0.1 as PicoDet, so that there is an i + 1
    i = y.long()
    log_s = distributions.log_softmax(-1)
    low, high = log_s.gather(-1, i), log_s.gather(-1, i + 1)
    return -((i + 1 - y) * low + (y - i) * high).squeeze(-1)
