"""The light decoder (semantic FPN, Panoptic Feature Pyramid Networks, Fig. 3): so that a backbone's speed is felt."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

NUM_GROUPS = 32  # of group norms, where the width allows


class FpnDecoder(nn.Module):
    """Each map grows to the finest by steps of two, a convolution before each; their sum says the classes.

    Args:
        in_channels: the widths of the maps, the finest first.
        dim: the decoder's own width.
        num_classes: the number of classes.

    Example:
        >>> import torch
        >>> decoder = FpnDecoder((8, 8, 8), dim=4, num_classes=3)
        >>> decoder([torch.zeros(2, 8, 8 // 2**level, 12 // 2**level) for level in range(3)]).shape
        torch.Size([2, 3, 8, 12])
    """

    def __init__(self, in_channels: Sequence[int], dim: int, num_classes: int) -> None:
        super().__init__()
        self.levels = nn.ModuleList(
            nn.ModuleList(conv_norm_act(dim if step else width, dim) for step in range(max(1, level)))
            for level, width in enumerate(in_channels)
        )
        self.classes = nn.Conv2d(dim, num_classes, kernel_size=1)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        """Logits `(B, classes, H, W)` of maps `(B, C, H, W)`, `(B, C, H / 2, W / 2)` and so on."""
        total = self.levels[0][0](maps[0])  # type: ignore[index]
        for level in range(1, len(maps)):
            x = maps[level]
            for conv, finer in zip(self.levels[level], reversed(maps[:level]), strict=True):  # type: ignore[call-overload]
                x = F.interpolate(conv(x), size=finer.shape[-2:], mode="bilinear")
            total = total + x
        return self.classes(total)


def conv_norm_act(in_dim: int, dim: int, kernel_size: int = 3, act: bool = True) -> nn.Sequential:
    """A convolution without bias, group norm, and ReLU.

    Example:
        >>> len(conv_norm_act(3, 8, kernel_size=1, act=False))
        2
    """
    conv = nn.Conv2d(in_dim, dim, kernel_size, padding=kernel_size // 2, bias=False)
    groups = min(math.gcd(NUM_GROUPS, dim), max(1, dim // 2))  # of two channels at least, as a map may be one cell
    return nn.Sequential(conv, nn.GroupNorm(groups, dim), *([nn.ReLU()] if act else []))
