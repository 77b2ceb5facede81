"""Points of the four levels, and boxes as distances from them to their four sides.

A network gives each distance as a distribution over 0, 1, ..., `reg_max` strides (Generalized Focal Loss, Eq. 3 to 5);
its mean is the distance.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

STRIDES = (8, 16, 32, 64)


def points_of(
    sizes: Sequence[tuple[int, int]], strides: Sequence[int] = STRIDES, device: torch.device | str | None = None
) -> tuple[Tensor, Tensor]:
    """The centres of all cells, one level after the other, each row by row.

    Args:
        sizes: height and width of each level's map.
        strides: the side of a cell of each level, in pixels.
        device: the device of the tensors.

    Returns:
        Points `(A, 2)`, x and y in pixels, and the stride of each `(A,)`.

    Example:
        >>> points, strides = points_of([(1, 2), (1, 1)], (8, 16))
        >>> points.tolist(), strides.tolist()
        ([[4.0, 4.0], [12.0, 4.0], [8.0, 8.0]], [8.0, 8.0, 16.0])
    """
    points, sides = [], []
    for (height, width), stride in zip(sizes, strides, strict=True):
        y, x = ((torch.arange(length, dtype=torch.float32, device=device) + 0.5) * stride for length in (height, width))
        level = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1).flatten(0, 1)  # (H * W, 2)
        points.append(level)
        sides.append(torch.full_like(level[:, 0], stride))
    return torch.cat(points), torch.cat(sides)


def mean_distances(distributions: Tensor) -> Tensor:
    """The means of distributions over 0, 1, 2, ..., in units of the stride.

    Args:
        distributions: logits `(..., reg_max + 1)`.

    Example:
        >>> mean_distances(torch.tensor([[0.0, 0.0, 0.0], [-100.0, -100.0, 0.0]])).tolist()
        [1.0, 2.0]
    """
    values = torch.arange(distributions.shape[-1], dtype=distributions.dtype, device=distributions.device)
    return (distributions.softmax(-1) * values).sum(-1)


def decode(distances: Tensor, points: Tensor, strides: Tensor) -> Tensor:
    """Boxes whose sides have these distances from the points.

    Args:
        distances: left, top, right and bottom `(..., A, 4)`, in units of the stride.
        points: `(A, 2)` in pixels.
        strides: `(A,)` in pixels.

    Example:
        >>> decode(torch.tensor([[1.0, 0.0, 1.0, 2.0]]), torch.tensor([[20.0, 12.0]]), torch.tensor([8.0])).tolist()
        [[12.0, 12.0, 28.0, 28.0]]
    """
    before, behind = (distances * strides[:, None]).chunk(2, dim=-1)
    return torch.cat([points - before, points + behind], dim=-1)


def encode(boxes: Tensor, points: Tensor, strides: Tensor) -> Tensor:
    """The distances of points to the sides of their boxes: the inverse of `decode`.

    Args:
        boxes: `(A, 4)`, one for each point.
        points: `(A, 2)` in pixels.
        strides: `(A,)` in pixels.

    Returns:
        `(A, 4)` in units of the stride; negative where a point lies outside.
    """
    return side_distances(boxes, points) / strides[:, None]


def side_distances(boxes: Tensor, points: Tensor) -> Tensor:
    """Left, top, right and bottom of points in boxes, in pixels: shapes `(..., 4)` and `(..., 2)` are broadcast.

    Example:
        >>> side_distances(torch.tensor([0.0, 0.0, 10.0, 10.0]), torch.tensor([4.0, 12.0])).tolist()
        [4.0, 12.0, 6.0, -2.0]
    """
    return torch.cat([points - boxes[..., :2], boxes[..., 2:] - points], dim=-1)
