"""The local stand-in for the high-order residuals: a depthwise convolution on the values, one filter per head.

`M_DW V` in Eq. 9. The released code convolves along the token sequence; the 2-D form follows the image instead.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from castling.attention.grid import Grid, depthwise_on_grid, resolve_grid, with_prefix
from castling.config import check_odd


def per_channel(weight: Tensor, head_shape: Sequence[int]) -> Tensor:
    """Filters `(H, ...)` of heads as filters `(H * D, ...)` of their channels; those that are already stay."""
    num_heads, head_dim = head_shape
    return weight if len(weight) == num_heads * head_dim else weight.repeat_interleave(head_dim, 0)


class TokenConv(nn.Conv1d):
    """Convolution along the raster order of tokens, prefix tokens included, as in the released code.

    Args:
        num_heads: one filter each, shared by the head's channels; weight `(num_heads, 1, kernel_size)`.
        kernel_size: taps, odd.

    Raises:
        ValueError: for an even kernel size.
    """

    def __init__(self, num_heads: int, kernel_size: int = 9) -> None:
        check_odd("kernel size", kernel_size)
        super().__init__(num_heads, num_heads, kernel_size, groups=num_heads, bias=False)

    def forward(self, v: Tensor, grid: Grid | None = None, visible: Tensor | None = None) -> Tensor:
        """Convolve values `(B, N, H, D)` to `(B, N, H, D)`.

        Where only the places `visible` `(B, Nv)` of the grid have a token, they keep their distances: the others are
        zeros in the sequence. Whatever comes before them is the prefix.
        """
        weight = per_channel(self.weight.to(v.dtype), v.shape[-2:]).unsqueeze(-2)  # (C, 1, 1, taps)
        length = v.shape[1]
        if visible is not None:
            num_prefix = length - visible.shape[1]
            rows, columns = resolve_grid(length, grid, num_prefix, visible)
            length, visible = num_prefix + rows * columns, with_prefix(visible, num_prefix)
        tokens = depthwise_on_grid(v.flatten(2), weight, (1, length), visible=visible)
        return tokens.unflatten(-1, v.shape[-2:])


class GridConv(nn.Conv2d):
    """Convolution on the token grid; prefix tokens get nothing.

    Args:
        num_heads: one filter each, shared by the head's channels; weight `(num_heads, 1, k, k)`.
        kernel_size: taps per axis, odd.
        num_prefix_tokens: tokens in front that are no part of the grid.

    Raises:
        ValueError: for an even kernel size.
    """

    def __init__(self, num_heads: int, kernel_size: int = 3, num_prefix_tokens: int = 0) -> None:
        check_odd("kernel size", kernel_size)
        super().__init__(num_heads, num_heads, kernel_size, groups=num_heads, bias=False)
        self.num_prefix_tokens = num_prefix_tokens

    def forward(self, v: Tensor, grid: Grid | None = None, visible: Tensor | None = None) -> Tensor:
        """Convolve values `(B, N, H, D)` on their grid, a square where none is given.

        Where only the places `visible` `(B, Nv)` have a token, there are zeros at the others.
        """
        grid = resolve_grid(v.shape[1], grid, self.num_prefix_tokens, visible)
        weight = per_channel(self.weight.to(v.dtype), v.shape[-2:])  # (C, 1, k, k)
        tokens = depthwise_on_grid(v[:, self.num_prefix_tokens :].flatten(2), weight, grid, visible=visible)
        return F.pad(tokens, (0, 0, self.num_prefix_tokens, 0)).unflatten(-1, v.shape[-2:])
