"""Where one place attends to: a row of an attention's map, at a cost linear in the number of tokens.

Every kernel here is linear in V while q and k stay. A row is therefore the gradient of one query's output with respect
to the values: for linear-angular attention `1/2 delta + q.k / pi`, before the output norm (Eq. 9).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from castling.attention import HeadMixer, attend
from castling.attention.grid import Grid, resolve_grid
from castling.attention.heads import promote
from castling.measure.attention_facts import Tokens, kernel_options


def implied_row(module: HeadMixer, tokens: Tokens, place: int) -> Tensor:
    """What an attention multiplies V with for one query, before anything is normalised and without its branch.

    Args:
        module: the attention.
        tokens: its q, k and v, as `record_tokens` keeps them.
        place: the query's place among the tokens, prefix tokens included.

    Returns:
        `(B, H, N)`; as large as it says where the network folds factors away.

    Raises:
        IndexError: for a place where there is no token.

    Example:
        >>> from castling import CastlingAttention
        >>> q, k, v = torch.randn(1, 9, 3, 4, 16).unbind(2)
        >>> implied_row(CastlingAttention(64, 4), Tokens(q, k, v), 0).shape
        torch.Size([1, 4, 9])
    """
    return _row(tokens, place, module.config.kernel, kernel_options(module))


def softmax_row(tokens: Tokens, place: int) -> Tensor:
    """The row that softmax would have for the same query and keys: `(B, H, N)`, each head's adding up to 1."""
    return _row(tokens, place, "softmax", {})


def on_grid(row: Tensor, grid: Grid | None, num_prefix_tokens: int) -> tuple[Tensor, Tensor]:
    """A row as prefix tokens `(..., P)` and the grid of the picture `(..., rows, columns)`."""
    prefix, patches = row.split([num_prefix_tokens, row.shape[-1] - num_prefix_tokens], dim=-1)
    return prefix, patches.unflatten(-1, resolve_grid(row.shape[-1], grid, num_prefix_tokens))


def _row(tokens: Tokens, place: int, kernel: str, options: dict[str, Any]) -> Tensor:
    num_tokens = tokens.k.shape[1]
    if not 0 <= place < num_tokens:
        raise IndexError(f"place must lie between 0 and {num_tokens - 1}; got {place}")
    q, k = promote(tokens.q.detach()[:, place : place + 1]), promote(tokens.k.detach())
    with torch.enable_grad():
        values = k.new_zeros(*k.shape[:-1], 1).requires_grad_()  # one channel says it for all
        own = {"own_value": values[:, place : place + 1]} if options.get("value_term") == "own" else {}
        out = attend(q, k, values, kernel, **options, **own)  # (B, 1, H, 1)
        (row,) = torch.autograd.grad(out.sum(), values)
    return row.squeeze(-1).transpose(1, 2)
