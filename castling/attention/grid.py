"""Depthwise convolutions on tokens, run channels-last on views of `(B, N, C)`.

Tokens are already the channels-last layout of an image, so nothing is transposed in memory.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

Grid = tuple[int, int]


class GridNote:
    """The grid of the tokens at hand, left by a network for layers that its host calls without it.

    Not an attribute of the layers themselves, because exporters refuse to change those. A copy starts empty.

    Attributes:
        grid: rows and columns, or None.
    """

    def __init__(self) -> None:
        self.grid: Grid | None = None

    def __deepcopy__(self, memo: dict[int, object]) -> GridNote:
        memo[id(self)] = copy = GridNote()  # one copy for all layers that share this note
        return copy

    def __getstate__(self) -> dict[str, object]:
        return {"grid": None}


def resolve_grid(num_tokens: int, grid: Grid | None, num_prefix_tokens: int = 0) -> Grid:
    """Rows and columns of the token grid: as given, or the square that the tokens make.

    Args:
        num_tokens: tokens with the prefix tokens.
        grid: rows and columns, or None for a square.
        num_prefix_tokens: class, distillation and register tokens in front.

    Raises:
        ValueError: if the grid does not hold the tokens, or none is given and they make no square.

    Example:
        >>> resolve_grid(197, None, num_prefix_tokens=1), resolve_grid(24, (4, 6))
        ((14, 14), (4, 6))
    """
    num_patches = num_tokens - num_prefix_tokens
    rows, columns = grid or (math.isqrt(max(num_patches, 0)),) * 2
    if num_patches < 1 or rows * columns != num_patches:
        hint = "" if grid else "; pass grid=(rows, columns)"
        raise ValueError(
            f"a {rows} x {columns} grid does not hold {num_patches} tokens "
            f"({num_tokens} less {num_prefix_tokens} prefix tokens){hint}"
        )
    return rows, columns


def strided(grid: Grid, stride: int) -> Grid:
    """The grid that every `stride`-th row and column make.

    Example:
        >>> strided((14, 7), 2)
        (7, 4)
    """
    return -(-grid[0] // stride), -(-grid[1] // stride)


def depthwise_on_grid(tokens: Tensor, weight: Tensor, grid: Grid, stride: int = 1) -> Tensor:
    """Depthwise convolution with zero padding that keeps the size, or the size that the stride leaves.

    Args:
        tokens: tokens `(B, rows * columns, C)`.
        weight: filters `(C, 1, kh, kw)` with odd kh and kw.
        grid: rows and columns.
        stride: step along both axes.

    Returns:
        `(B, N, C)` on the grid `strided(grid, stride)`, in the same memory order.
    """
    batch, _, channels = tokens.shape
    image = tokens.reshape(batch, *grid, channels).permute(0, 3, 1, 2)  # (B, C, rows, columns), channels-last strides
    padding = (weight.shape[-2] // 2, weight.shape[-1] // 2)
    image = F.conv2d(image, weight, stride=stride, padding=padding, groups=weight.shape[0])
    return image.permute(0, 2, 3, 1).flatten(1, 2)
