"""Pooling of queries, keys and values after their projection, as in MViTv2 (the paper's "post-Q pooling")."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from castling.attention import Grid
from castling.attention.grid import depthwise_on_grid


def head_conv(head_dim: int, stride: int = 1) -> nn.Conv2d:
    """A 3 x 3 depthwise convolution without bias for one head; `pool_heads` shares it among all."""
    return nn.Conv2d(head_dim, head_dim, 3, stride, padding=1, groups=head_dim, bias=False)


def pool_heads(x: Tensor, conv: nn.Conv2d, norm: nn.Module, grid: Grid) -> Tensor:
    """Convolve every head with the same filters and normalise it: `(B, N, H, D)` to `(B, N', H, D)`."""
    num_heads, head_dim = x.shape[-2:]
    weight = conv.weight if len(conv.weight) > head_dim else conv.weight.repeat(num_heads, 1, 1, 1)  # (H * D, 1, 3, 3)
    tokens = depthwise_on_grid(x.flatten(2), weight.to(x.dtype), grid, conv.stride[0])
    return norm(tokens.unflatten(-1, x.shape[-2:]))


def expand_heads(conv: nn.Conv2d, num_heads: int) -> None:
    """Give a `head_conv` its filters for all heads at once, so that `pool_heads` need not repeat them at every call."""
    weight = conv.weight.detach().repeat(num_heads, 1, 1, 1)
    conv.weight = nn.Parameter(weight, requires_grad=False)


def slice_tokens(x: Tensor, grid: Grid, stride: int = 2) -> Tensor:
    """Every `stride`-th row and column of tokens `(B, N, ...)`."""
    if stride == 1:
        return x
    return x.unflatten(1, grid)[:, ::stride, ::stride].flatten(1, 2)


def max_pool_tokens(x: Tensor, grid: Grid, stride: int = 2) -> Tensor:
    """3 x 3 max-pooling of tokens `(B, N, C)`, as in the shortcut of MViTv2."""
    image = x.unflatten(1, grid).permute(0, 3, 1, 2)
    return F.max_pool2d(image, 3, stride, padding=1).permute(0, 2, 3, 1).flatten(1, 2)
