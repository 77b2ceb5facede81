"""Necks: three maps of a backbone become four of one width, mixed from top to bottom and back (PicoDet, section 3).

LCPAN and CSPPAN are the same path; they differ in the node that mixes two maps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from castling.config import check_choice


def conv_norm_act(
    in_dim: int, dim: int, kernel_size: int = 1, stride: int = 1, groups: int = 1, act: bool = True
) -> nn.Sequential:
    """A convolution without bias, batch norm, and Hardswish; strides round sizes up.

    Example:
        >>> conv_norm_act(3, 8, kernel_size=5, stride=2)(torch.zeros(2, 3, 13, 13)).shape
        torch.Size([2, 8, 7, 7])
    """
    conv = nn.Conv2d(in_dim, dim, kernel_size, stride, kernel_size // 2, groups=groups, bias=False)
    nn.init.kaiming_uniform_(conv.weight, nonlinearity="relu")
    return nn.Sequential(conv, nn.BatchNorm2d(dim), *([nn.Hardswish()] if act else []))


def depthwise_separable(in_dim: int, dim: int, kernel_size: int, stride: int = 1) -> nn.Sequential:
    """A depthwise convolution, then one over channels."""
    return nn.Sequential(
        conv_norm_act(in_dim, in_dim, kernel_size, stride, groups=in_dim),
        conv_norm_act(in_dim, dim),
    )


def light_node(dim: int, kernel_size: int) -> nn.Sequential:
    """LCPAN's node, `2 dim` channels to `dim`: two depthwise separable convolutions."""
    return nn.Sequential(
        depthwise_separable(2 * dim, 2 * dim, kernel_size),
        depthwise_separable(2 * dim, dim, kernel_size),
    )


class CspNode(nn.Module):
    """CSPPAN's node, `2 dim` channels to `dim`: one half goes through a bottleneck, the other past it."""

    def __init__(self, dim: int, kernel_size: int) -> None:
        super().__init__()
        half = dim // 2
        self.main = nn.Sequential(
            conv_norm_act(2 * dim, half),
            conv_norm_act(half, half),
            depthwise_separable(half, half, kernel_size),
        )
        self.short = conv_norm_act(2 * dim, half)
        self.final = conv_norm_act(2 * half, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, 2 dim, H, W)` to `(B, dim, H, W)`."""
        return self.final(torch.cat([self.main(x), self.short(x)], dim=1))


NECKS: dict[str, Callable[[int, int], nn.Module]] = {"lcpan": light_node, "csppan": CspNode}


class PathAggregation(nn.Module):
    """A path from the coarsest map to the finest and back, and one map more above it.

    Args:
        kind: a name in `NECKS`.
        in_channels: the widths of the maps at strides 8, 16 and 32.
        dim: the width of the maps that come out.
        kernel_size: the side of depthwise filters.

    Example:
        >>> neck = PathAggregation("lcpan", (8, 16, 32), dim=4).eval()
        >>> [tuple(x.shape) for x in neck([torch.zeros(1, c, s, s) for c, s in ((8, 12), (16, 6), (32, 3))])]
        [(1, 4, 12, 12), (1, 4, 6, 6), (1, 4, 3, 3), (1, 4, 2, 2)]
    """

    def __init__(self, kind: str, in_channels: Sequence[int], dim: int, kernel_size: int = 5) -> None:
        super().__init__()
        check_choice("neck", kind, NECKS)
        node = NECKS[kind]
        self.project = nn.ModuleList(conv_norm_act(width, dim) for width in in_channels)
        self.down_nodes = nn.ModuleList(node(dim, kernel_size) for _ in in_channels[1:])  # at strides 16 and 8
        self.shrink = nn.ModuleList(depthwise_separable(dim, dim, kernel_size, stride=2) for _ in in_channels[1:])
        self.up_nodes = nn.ModuleList(node(dim, kernel_size) for _ in in_channels[1:])  # at strides 16 and 32
        self.top_of_input = depthwise_separable(dim, dim, kernel_size, stride=2)
        self.top_of_output = depthwise_separable(dim, dim, kernel_size, stride=2)

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Mix maps `(B, C, H, W)` of three strides, the finest first, into four."""
        fine, middle, coarse = (project(x) for project, x in zip(self.project, maps, strict=True))
        to_middle, to_fine = self.down_nodes
        middle = to_middle(torch.cat([_enlarged(coarse, middle), middle], dim=1))
        fine = to_fine(torch.cat([_enlarged(middle, fine), fine], dim=1))
        outputs = [fine]
        for shrink, node, x in zip(self.shrink, self.up_nodes, (middle, coarse), strict=True):
            outputs.append(node(torch.cat([shrink(outputs[-1]), x], dim=1)))
        return [*outputs, self.top_of_input(coarse) + self.top_of_output(outputs[-1])]


def _enlarged(x: Tensor, like: Tensor) -> Tensor:
    """To the size of another map, which no graph has to prove to be twice as large."""
    return F.interpolate(x, size=like.shape[-2:], mode="nearest")
