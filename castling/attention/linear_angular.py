"""Linear-angular attention: the linear part of the angular kernel, at a cost linear in the number of tokens.

Eq. 8 expands the angular kernel into `1/2 + q.k / pi` and odd residuals; Eq. 9 keeps the first two terms and takes
`K^T V` first.
"""

from __future__ import annotations

import math
from functools import partial
from typing import get_args

from torch import Tensor

from castling.attention.heads import check_tokens, inverse_norm, per_head, unit
from castling.config import Reduction, ValueTerm, check_choice


def linear_angular_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    value_term: ValueTerm = "own",
    reduction: Reduction = "sum",
    own_value: Tensor | None = None,
) -> Tensor:
    """The linear terms of Eq. 9, `1/2 V + 1/pi Q (K^T V)` with unit rows in Q and K.

    Args:
        q: queries `(..., Nq, H, D)`, as the qkv projection lays them out; any strides.
        k: keys `(..., N, H, D)`.
        v: values `(..., N, H, Dv)`.
        value_term: `own` for half of each token's own value (Eq. 9, and the released code), `sum` for half of the sum
            of all values (the exact first term of Eq. 8 times V).
        reduction: `sum` for sums over tokens as they are, `mean` for sums divided by N.
        own_value: each query's own value `(..., Nq, H, Dv)`, where queries are fewer than values; by default v.

    Returns:
        `(..., Nq, H, Dv)`; float32 for half-precision tokens.

    Raises:
        ValueError: for shapes that do not fit, `own` without a value for every query, or an unknown option.

    Example:
        >>> import torch
        >>> q, k, v = torch.randn(2, 196, 3, 4, 32).unbind(2)
        >>> linear_angular_attention(q, k, v).shape
        torch.Size([2, 196, 4, 32])
    """
    check_choice("value_term", value_term, get_args(ValueTerm))
    check_choice("reduction", reduction, get_args(Reduction))
    check_tokens(q, k, v)
    own_value = v if own_value is None else own_value
    if value_term == "own" and q.shape[-3] != own_value.shape[-3]:
        raise ValueError(
            f"value_term 'own' adds each query's own value, but there are {q.shape[-3]} queries and "
            f"{own_value.shape[-3]} values; pass own_value or use 'sum'"
        )
    others = () if own_value is v else (own_value,)  # v is there already and need not be read twice
    return per_head(partial(_linear_angular, value_term=value_term, reduction=reduction), q, k, v, *others)


def _linear_angular(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    own_value: Tensor | None = None,
    *,
    eps: float,
    value_term: ValueTerm,
    reduction: Reduction,
) -> Tensor:
    num_summed = k.shape[-2] if reduction == "mean" else 1
    kv = unit(k, eps).mT @ v  # (..., D, Dv)
    value = v if own_value is None else own_value
    if value_term == "sum":
        value = v.sum(-2, keepdim=True) / num_summed
    # 1/2 (V + 2/pi Q K^T V). Q's rows are scaled after the product, in place: fresh memory costs more than arithmetic.
    linear = q @ (kv * (2 / math.pi / num_summed))
    return linear.mul_(inverse_norm(q, eps)).lerp_(value, 0.5)
