"""A network that sees large pictures through a window, which is moved over them; what it says twice is averaged.

So a picture is seen at the size that the network was trained at, whatever its own.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from castling.tasks.segmentation.data import STRIDE


def windowed(network: Callable[[Tensor], Tensor], images: Tensor, window: int, stride: int) -> Tensor:
    """The scores that the network would give for whole pictures, put together from parts of them.

    Args:
        network: gives scores `(B, K, h, w)` for parts, smaller than its input by a whole number.
        images: `(B, C, H, W)`.
        window: side of the square that is seen at a time; less where a picture has less.
        stride: pixels from one window to the next; the last one of a row is moved back to end with the picture.

    Returns:
        `(B, K, H / s, W / s)` for a network that makes its input smaller by s.

    Raises:
        ValueError: for a window or stride that is no multiple of 32, or a stride that leaves gaps.

    Example:
        >>> network = nn.AvgPool2d(4)
        >>> images = torch.randn(1, 3, 96, 160)
        >>> torch.allclose(windowed(network, images, window=64, stride=32), network(images))
        True
    """
    check_window(window, stride)
    height, width = images.shape[-2:]
    rows, columns = min(window, height), min(window, width)
    total = times = images.new_zeros(())
    for top in starts(height, rows, stride):
        for left in starts(width, columns, stride):
            scores = network(images[..., top : top + rows, left : left + columns])
            scale = rows // scores.shape[-2]
            if total.ndim == 0:  # only now is known how many classes there are, and how large their maps
                total = scores.new_zeros(*scores.shape[:2], height // scale, width // scale)
                times = torch.zeros_like(total[0, 0])
            y, x = top // scale, left // scale
            total[..., y : y + scores.shape[-2], x : x + scores.shape[-1]] += scores
            times[y : y + scores.shape[-2], x : x + scores.shape[-1]] += 1
    return total / times


class Windowed(nn.Module):
    """A network that sees pictures through a window, as a network.

    Args:
        network: see `windowed`.
        window: side of the square that is seen at a time.
        stride: pixels from one window to the next.

    Raises:
        ValueError: see `windowed`.
    """

    def __init__(self, network: nn.Module, window: int, stride: int) -> None:
        super().__init__()
        check_window(window, stride)
        self.network, self.window, self.stride = network, window, stride

    def forward(self, images: Tensor) -> Tensor:
        """Scores of whole pictures."""
        return windowed(self.network, images, self.window, self.stride)


def check_window(window: int, stride: int) -> None:
    """Refuse a window that does not fit the network's grid, or a stride that leaves gaps.

    Raises:
        ValueError: says so.
    """
    for name, side in (("window", window), ("stride", stride)):
        if side < STRIDE or side % STRIDE:
            raise ValueError(f"{name} must be a multiple of {STRIDE}; got {side}")
    if stride > window:
        raise ValueError(f"stride must be at most the window, {window}, or pixels are left out; got {stride}")


def starts(length: int, window: int, stride: int) -> list[int]:
    """Where windows begin on a line of pixels.

    Example:
        >>> starts(160, 64, 64), starts(64, 64, 32)
        ([0, 64, 96], [0])
    """
    last = length - window
    return [*range(0, last, stride), last]
