"""Depthwise convolutions on tokens, run channels-last on views of `(B, N, C)`.

Tokens are already the channels-last layout of an image, so nothing is transposed in memory. Where only some places of
the grid have a token, as in masked pretraining, convolutions see zeros at all others.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from castling.attention import native

Grid = tuple[int, int]


class GridNote:
    """The grid of the tokens at hand, left by a network for layers that its host calls without it.

    Not an attribute of the layers themselves, because exporters refuse to change those. A copy starts empty.

    Attributes:
        grid: rows and columns, or None.
        visible: the places in the grid that have a token `(B, Nv)`, in the order of the tokens; None for all places.
    """

    def __init__(self) -> None:
        self.grid: Grid | None = None
        self.visible: Tensor | None = None

    def places(self, grid: Grid | None) -> tuple[Grid | None, Tensor | None]:
        """Grid and visible places: as noted, or all of the grid that a caller gives."""
        return (self.grid, self.visible) if grid is None else (grid, None)

    def __deepcopy__(self, memo: dict[int, object]) -> GridNote:
        memo[id(self)] = copy = GridNote()  # one copy for all layers that share this note
        return copy

    def __getstate__(self) -> dict[str, object]:
        return {"grid": None, "visible": None}


def resolve_grid(num_tokens: int, grid: Grid | None, num_prefix_tokens: int = 0, visible: Tensor | None = None) -> Grid:
    """Rows and columns of the token grid: as given, or the square that the tokens make.

    Args:
        num_tokens: tokens with the prefix tokens.
        grid: rows and columns, or None for a square.
        num_prefix_tokens: class, distillation and register tokens in front.
        visible: places of the tokens `(B, Nv)`, where not all places of the grid have one.

    Raises:
        ValueError: if the grid does not hold the tokens, or none is given and they make no square.

    Example:
        >>> resolve_grid(197, None, num_prefix_tokens=1), resolve_grid(24, (4, 6))
        ((14, 14), (4, 6))
    """
    num_patches = num_tokens - num_prefix_tokens
    if visible is not None:
        if grid is None or num_patches != visible.shape[1]:
            raise ValueError(f"{visible.shape[1]} visible places of the grid {grid} do not hold {num_patches} tokens")
        return grid
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


def spread_tokens(tokens: Tensor, visible: Tensor, num_places: int) -> Tensor:
    """Put tokens at their places among zeros.

    Args:
        tokens: tokens `(B, Nv, C)`.
        visible: the place of each, `(B, Nv)`; no place twice.
        num_places: the number of all places.

    Returns:
        `(B, num_places, C)`.

    Example:
        >>> spread_tokens(torch.tensor([[[5.0], [7.0]]]), torch.tensor([[3, 1]]), 4).flatten().tolist()
        [0.0, 7.0, 0.0, 5.0]
    """
    batch, _, channels = tokens.shape
    places = tokens.new_zeros(batch * num_places, channels)
    return places.index_copy(0, _rows(visible, num_places), tokens.flatten(0, 1)).unflatten(0, (batch, num_places))


def gather_tokens(tokens: Tensor, visible: Tensor) -> Tensor:
    """The tokens at some places, `(B, N, C)` to `(B, Nv, C)`: the way back of `spread_tokens`.

    Example:
        >>> gather_tokens(torch.arange(4.0).reshape(1, 4, 1), torch.tensor([[3, 1]])).flatten().tolist()
        [3.0, 1.0]
    """
    # Whole rows of a matrix: an index for every number, as `gather` takes it, is several times slower.
    chosen = tokens.flatten(0, 1).index_select(0, _rows(visible, tokens.shape[1]))
    return chosen.unflatten(0, (visible.shape[0], visible.shape[1]))


def with_prefix(visible: Tensor, num_prefix_tokens: int) -> Tensor:
    """Places in a sequence with prefix tokens in front, those included: `(B, Nv)` to `(B, prefix + Nv)`.

    Example:
        >>> with_prefix(torch.tensor([[3, 1]]), 2).tolist()
        [[0, 1, 5, 3]]
    """
    prefix = torch.arange(num_prefix_tokens, device=visible.device).expand(len(visible), -1)
    return torch.cat([prefix, visible + num_prefix_tokens], dim=1)


def _rows(visible: Tensor, num_places: int) -> Tensor:
    """Places `(B, Nv)` as rows of all images' places below each other."""
    first = torch.arange(len(visible), device=visible.device) * num_places
    return (visible + first[:, None]).flatten()


def depthwise_on_grid(
    tokens: Tensor, weight: Tensor, grid: Grid, stride: int = 1, visible: Tensor | None = None
) -> Tensor:
    """Depthwise convolution with zero padding that keeps the size, or the size that the stride leaves.

    Args:
        tokens: tokens `(B, rows * columns, C)`, or `(B, Nv, C)` where only some places have one.
        weight: filters `(C, 1, kh, kw)` with odd kh and kw.
        grid: rows and columns.
        stride: step along both axes; 1 where places are named.
        visible: the places of the tokens `(B, Nv)`; at all others there are zeros. None for tokens everywhere.

    Returns:
        `(B, N, C)` on the grid `strided(grid, stride)`, in the same memory order; `(B, Nv, C)` at the places named.
    """
    if visible is not None:
        places = spread_tokens(tokens, visible, grid[0] * grid[1])
        return gather_tokens(depthwise_on_grid(places, weight, grid), visible)
    if stride == 1 and native.can_convolve(tokens, weight):
        return native.depthwise(tokens, weight, grid)
    batch, _, channels = tokens.shape
    image = tokens.reshape(batch, *grid, channels).permute(0, 3, 1, 2)  # (B, C, rows, columns), channels-last strides
    padding = (weight.shape[-2] // 2, weight.shape[-1] // 2)
    image = F.conv2d(image, weight, stride=stride, padding=padding, groups=weight.shape[0])
    return image.permute(0, 2, 3, 1).flatten(1, 2)
