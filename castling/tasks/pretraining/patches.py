"""Pictures as patches, and which of them are seen: drawn anew in training, the same for every picture in evaluation."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from castling.attention import Grid
from castling.models.input_size import check_image_size

Patch = tuple[int, int]  # height and width in pixels
EVALUATION_SEED = 75
EPS = 1e-6  # of a patch's variance: one without any stays one


class Masked(NamedTuple):
    """How many of a picture's patches are hidden.

    Args:
        num_places: the number of patches.
        num_visible: the number of those that are seen.
    """

    num_places: int
    num_visible: int


def masked_by_share(num_places: int, share: float) -> Masked:
    """Hide a share of the patches; at least one is hidden and one seen.

    Raises:
        ValueError: for a share outside (0, 1), or fewer than two patches.

    Example:
        >>> masked_by_share(196, 0.75), masked_by_share(2, 0.9).num_visible
        (Masked(num_places=196, num_visible=49), 1)
    """
    if not 0 < share < 1:
        raise ValueError(f"masked must lie between 0 and 1; got {share}")
    if num_places < 2:
        raise ValueError(f"a picture of {num_places} patches has none to hide: take smaller patches or larger pictures")
    return Masked(num_places, min(max(round(num_places * (1 - share)), 1), num_places - 1))


def draw_places(masked: Masked) -> Tensor:
    """Places to be seen, by torch's generator, in raster order `(Nv,)`."""
    return torch.randperm(masked.num_places)[: masked.num_visible].sort().values


def fixed_places(masked: Masked, *numbers: int) -> Tensor:
    """Places to be seen, in raster order `(Nv,)`: always the same for these numbers.

    Example:
        >>> torch.equal(fixed_places(Masked(64, 16), 7), fixed_places(Masked(64, 16), 7))
        True
    """
    order = np.random.default_rng([EVALUATION_SEED, *numbers]).permutation(masked.num_places)
    return torch.from_numpy(np.sort(order[: masked.num_visible]))


def hidden_places(visible: Tensor, num_places: int) -> Tensor:
    """Whether each place is hidden, `(B, Nv)` to `(B, N)`.

    Example:
        >>> hidden_places(torch.tensor([[0, 2]]), 4).tolist()
        [[False, True, False, True]]
    """
    everywhere = torch.ones(len(visible), num_places, dtype=torch.bool, device=visible.device)
    return everywhere.scatter(1, visible, False)


def grid_of(images: Tensor, patch: Patch) -> Grid:
    """Rows and columns of patches in images `(B, C, H, W)`.

    Raises:
        ValueError: if patches of this size do not fill the image; names the nearest sizes.
    """
    size = (images.shape[-2], images.shape[-1])
    check_image_size(size, patch)
    return size[0] // patch[0], size[1] // patch[1]


def to_patches(images: Tensor, patch: Patch) -> Tensor:
    """Images `(B, C, H, W)` as patches `(B, N, height * width * C)` in raster order.

    Example:
        >>> to_patches(torch.arange(8.0).reshape(1, 1, 2, 4), (2, 2)).tolist()
        [[[0.0, 1.0, 4.0, 5.0], [2.0, 3.0, 6.0, 7.0]]]
    """
    (rows, columns), (height, width) = grid_of(images, patch), patch
    apart = images.reshape(len(images), -1, rows, height, columns, width)
    return apart.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)


def to_images(patches: Tensor, patch: Patch, grid: Grid) -> Tensor:
    """Patches `(B, N, height * width * C)` as images `(B, C, H, W)`: the way back of `to_patches`.

    Example:
        >>> images = torch.randn(2, 3, 8, 12)
        >>> torch.equal(to_images(to_patches(images, (4, 2)), (4, 2), (2, 6)), images)
        True
    """
    apart = patches.reshape(len(patches), *grid, *patch, -1).permute(0, 5, 1, 3, 2, 4)  # (B, C, rows, height, ...)
    return apart.flatten(4).flatten(2, 3)


def normalise(patches: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Every patch with mean 0 and variance 1, beside its mean and its spread `(B, N, 1)`."""
    mean, variance = patches.mean(-1, keepdim=True), patches.var(-1, keepdim=True)
    spread = (variance + EPS).sqrt()
    return (patches - mean) / spread, mean, spread
