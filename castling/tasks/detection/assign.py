"""Which point learns which box: ATSS, task-aligned assignment (TOOD) and SimOTA (YOLOX), for one picture each.

A cost or a measure that is no number makes a pair infinitely bad: it is never chosen, and breaks nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torchvision.ops import box_iou, generalized_box_iou

from castling.tasks.detection.boxes import side_distances
from castling.tasks.detection.focal import varifocal

CELL = 5.0  # the side of ATSS's anchors, in strides
RADIUS = 2.5  # of SimOTA's centres, in strides
FAR = 1e5  # SimOTA's cost of a point outside of a box or its centre: such a point is taken only for want of others
EPS = 1e-9  # of TOOD's normalisation, as PicoDet


class Assignment(NamedTuple):
    """What each point of a picture is to learn.

    Args:
        box: the index of each point's box, -1 for background, `(A,)`.
        quality: the score that its class is to have, `(A,)`; 0 for background.
    """

    box: Tensor
    quality: Tensor


@torch.no_grad()
def atss(points: Tensor, strides: Tensor, boxes: Tensor, predicted: Tensor, topk: int = 9) -> Assignment:
    """Adaptive training sample selection (ATSS, Algorithm 1): by overlap with anchors, whatever the network says.

    A box takes the candidates, the `topk` points of every level nearest to its centre, that lie in it and whose anchors
    overlap it by at least the candidates' mean plus standard deviation.

    Args:
        points: `(A, 2)`, one level after the other.
        strides: `(A,)`.
        boxes: `(M, 4)`.
        predicted: the network's boxes `(A, 4)`; their overlap with the assigned boxes is the quality.
        topk: the number of candidates on each level.

    Example:
        >>> points, strides = torch.tensor([[4.0, 4.0], [12.0, 4.0], [20.0, 4.0]]), torch.tensor([8.0, 8.0, 8.0])
        >>> box = torch.tensor([[8.0, 0.0, 17.0, 9.0]])
        >>> atss(points, strides, box, box.expand(3, 4), topk=2)
        Assignment(box=tensor([-1,  0, -1]), quality=tensor([0., 1., 0.]))
    """
    if not len(boxes):
        return _background(predicted)
    half = CELL / 2 * strides[:, None]
    overlaps = box_iou(boxes, torch.cat([points - half, points + half], dim=-1))  # (M, A)
    distances = ((_centres(boxes)[:, None] - points) ** 2).sum(-1)  # (M, A), squared
    lengths = strides.unique_consecutive(return_counts=True)[1].tolist()
    candidates = torch.cat([_lowest(level, topk) for level in distances.split(lengths, dim=1)], dim=1)
    num = candidates.sum(1, keepdim=True)
    mean = (overlaps * candidates).sum(1, keepdim=True) / num
    deviation = (((overlaps - mean) ** 2 * candidates).sum(1, keepdim=True) / (num - 1).clamp(min=1)).sqrt()
    positive = candidates & (overlaps >= mean + deviation) & _inside(points, boxes)
    index = _one_box_each(positive, overlaps)
    return Assignment(index, _of_assigned(index, box_iou(boxes, predicted)))


@torch.no_grad()
def task_aligned(
    points: Tensor,
    boxes: Tensor,
    labels: Tensor,
    scores: Tensor,
    predicted: Tensor,
    topk: int = 13,
    alpha: float = 1.0,
    beta: float = 6.0,
) -> Assignment:
    """Task-aligned assignment (TOOD, Eq. 2 and section 3.2): by what the network makes of the points in a box.

    A box takes the `topk` points in it with the largest alignment `t = s^alpha u^beta` of score s and overlap u. The
    quality is t, scaled such that the largest of a box is its largest u.

    Args:
        points: `(A, 2)`.
        boxes: `(M, 4)`.
        labels: `(M,)`.
        scores: `(A, classes)`.
        predicted: `(A, 4)`.
        topk: the number of points for each box.
        alpha: the exponent of the score.
        beta: the exponent of the overlap.

    Example:
        >>> box, points = torch.tensor([[0.0, 0.0, 10.0, 10.0]]), torch.tensor([[4.0, 4.0], [12.0, 4.0]])
        >>> task_aligned(points, box, torch.tensor([1]), torch.full((2, 3), 0.5), box.expand(2, 4)).box
        tensor([ 0, -1])
    """
    if not len(boxes):
        return _background(predicted)
    u = box_iou(boxes, predicted)  # (M, A)
    t = scores[:, labels].T ** alpha * u**beta
    positive = _lowest(torch.where(_inside(points, boxes), -t, torch.inf), topk)
    index = _one_box_each(positive, u)
    own = index == torch.arange(len(boxes), device=index.device)[:, None]  # (M, A)
    largest_t, largest_u = (torch.where(own, x, 0).amax(1, keepdim=True) for x in (t, u))
    return Assignment(index, _of_assigned(index, t / (largest_t + EPS) * largest_u))


@torch.no_grad()
def simota(
    points: Tensor,
    strides: Tensor,
    boxes: Tensor,
    labels: Tensor,
    scores: Tensor,
    predicted: Tensor,
    topk: int = 10,
    iou_weight: float = 6.0,
) -> Assignment:
    """SimOTA (YOLOX, section 2.1): each box takes the points of least cost, as many as its best overlaps sum up to.

    The cost is the varifocal loss of the classes plus `iou_weight` times the GIoU loss (PicoDet, Eq. 3).

    Args:
        points: `(A, 2)`.
        strides: `(A,)`.
        boxes: `(M, 4)`.
        labels: `(M,)`.
        scores: `(A, classes)`.
        predicted: `(A, 4)`; their overlap with the assigned boxes is the quality.
        topk: the number of best overlaps that are summed up.
        iou_weight: the weight of the GIoU loss.
    """
    if not len(boxes):
        return _background(predicted)
    offsets = (points - _centres(boxes)[:, None]).abs().amax(-1)  # (M, A)
    inside, central = _inside(points, boxes), offsets < RADIUS * strides
    possible = (inside | central).any(0)  # (A,), for any box
    overlaps = box_iou(boxes, predicted)  # (M, A)
    negative = varifocal(scores, torch.zeros_like(scores))  # (A, classes)
    by_class = negative.sum(1) - negative[:, labels].T + varifocal(scores[:, labels].T, overlaps)
    cost = by_class + iou_weight * (1 - generalized_box_iou(boxes, predicted)) + FAR * ~(inside & central)
    best = torch.where(possible, overlaps.nan_to_num(0.0), 0).topk(min(topk, len(points)), dim=1).values
    num = best.sum(1, keepdim=True).long().clamp(min=1)
    positive = _lowest(torch.where(possible, cost, torch.inf), num, at_most=topk)
    index = _one_box_each(positive, -cost)
    return Assignment(index, _of_assigned(index, overlaps))


def _lowest(costs: Tensor, num: int | Tensor, at_most: int = 0) -> Tensor:
    """Where the lowest finite costs of each row are; of equal ones the first are taken.

    Args:
        costs: `(M, A)`.
        num: how many, for all rows or for each `(M, 1)`.
        at_most: the largest number, where each row has its own.
    """
    costs = torch.where(costs.isfinite(), costs, torch.inf)
    most = min(num if isinstance(num, int) else at_most, costs.shape[1])
    in_order = costs.topk(most, dim=1, largest=False).values
    last = in_order[:, -1:] if isinstance(num, int) else in_order.gather(1, num.clamp(max=most) - 1)
    lower, equal = costs < last, costs == last
    room = num - lower.sum(1, keepdim=True)
    return (lower | equal & (equal.cumsum(1) <= room)) & costs.isfinite()


def _one_box_each(positive: Tensor, liking: Tensor) -> Tensor:
    """For each point the box it likes best of those that took it, -1 where none did: `(M, A)` to `(A,)`."""
    best = torch.where(positive, liking, -torch.inf).argmax(0)
    return torch.where(positive.any(0), best, -1)


def _of_assigned(index: Tensor, values: Tensor) -> Tensor:
    """The value of each point's own box, 0 for background or no number: `(A,)` of `(M, A)`."""
    own = values.gather(0, index.clamp(min=0)[None])[0]
    return torch.where(index >= 0, own, 0).nan_to_num(0.0)


def _background(predicted: Tensor) -> Assignment:
    quality = torch.zeros_like(predicted[:, 0])
    return Assignment(torch.full_like(quality, -1, dtype=torch.long), quality)


def _inside(points: Tensor, boxes: Tensor) -> Tensor:
    """Whether each point lies in each box, `(M, A)`."""
    return side_distances(boxes[:, None], points.expand(len(boxes), -1, -1)).amin(-1) > 0


def _centres(boxes: Tensor) -> Tensor:
    return (boxes[:, :2] + boxes[:, 2:]) / 2
