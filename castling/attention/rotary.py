"""Rotary positions on the grid: q and k are turned by angles that their rows and columns have.

Turning leaves lengths alone and makes `q_i.k_j` depend on where j lies as seen from i, so that the linear-angular map,
which has no other way to, can prefer some directions and distances. The angular kernel is then that of the turned
vectors, and the cost stays linear. Periods are those of DINOv3 (axial, relative to the grid, from one to a hundred).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from castling.attention.forms import in_place
from castling.attention.grid import Grid

BASE = 100.0  # the longest period, in units of half a grid; the shortest is 1


def rotary_table(grid: Grid, dim: int, num_prefix_tokens: int, like: Tensor) -> Tensor:
    """Cosines and sines for the tokens of a grid; prefix tokens are not turned.

    Args:
        grid: rows and columns.
        dim: channels of a head.
        num_prefix_tokens: tokens in front that are no part of the grid.
        like: a tensor of the device and dtype that are wanted.

    Returns:
        `(2, N, 1, dim / 2)`.

    Raises:
        ValueError: if 4 does not divide `dim`: rows and columns take pairs of channels each.

    Example:
        >>> rotary_table((14, 14), 64, 1, torch.empty(0)).shape
        torch.Size([2, 197, 1, 32])
    """
    if dim % 4:
        raise ValueError(f"rotary positions need heads whose channels 4 divides; got {dim}")
    # Tensors of a compiler's or a counter's own kind must not be kept for others.
    make = _kept_table if type(like) is Tensor and not torch.compiler.is_compiling() else _make_table
    return make(*grid, dim, num_prefix_tokens, like.device, like.dtype)


def _make_table(
    rows: int, columns: int, dim: int, num_prefix_tokens: int, device: torch.device, dtype: torch.dtype
) -> Tensor:
    num_periods = dim // 4
    turns = BASE ** (-torch.arange(num_periods, device=device, dtype=dtype) / num_periods)
    by_row, by_column = (2 * math.pi * _places(length, device, dtype)[:, None] * turns for length in (rows, columns))
    angles = torch.cat([by_row[:, None].expand(-1, columns, -1), by_column[None].expand(rows, -1, -1)], dim=-1)
    angles = torch.cat([angles.new_zeros(num_prefix_tokens, dim // 2), angles.flatten(0, 1)])
    return torch.stack([angles.cos(), angles.sin()]).unsqueeze(-2)


@lru_cache(maxsize=8)
def _kept_table(*arguments: Any) -> Tensor:
    with torch.inference_mode(False), torch.no_grad():  # one that is kept may be needed in training
        return _make_table(*arguments)


def _places(length: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """The middles of so many places between -1 and 1."""
    return (torch.arange(length, device=device, dtype=dtype) + 0.5) / length * 2 - 1


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Turn pairs of channels, the first half with the second.

    Args:
        x: queries, keys or both `(B, N, H, D)`. Half precision is turned in that of the table.
        table: cosines and sines `(2, N, 1, D / 2)`, or `(2, B, N, 1, D / 2)`.

    Example:
        >>> turned = rotate(torch.ones(1, 1, 1, 4), rotary_table((1, 1), 4, 0, torch.empty(0)))
        >>> turned.flatten().tolist()  # the middle of a grid is where nothing is turned
        [1.0, 1.0, 1.0, 1.0]
    """
    dtype = x.dtype
    cosine, sine = table
    x = x.to(cosine.dtype)
    if not in_place(x):
        pairs = x.unflatten(-1, (2, -1))
        swapped = pairs.flip(-2) * torch.stack([-sine, sine], dim=-2)  # halves joined again would cost engines more
        return (pairs * cosine.unsqueeze(-2) + swapped).flatten(-2).to(dtype)
    first, second = x.chunk(2, dim=-1)
    turned = torch.empty_like(x)
    left, right = turned.chunk(2, dim=-1)
    torch.mul(first, cosine, out=left).addcmul_(second, sine, value=-1)
    torch.mul(first, sine, out=right).addcmul_(second, cosine)
    return turned.to(dtype)
