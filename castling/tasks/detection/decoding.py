"""What is left of a detector's boxes: of those of one class that overlap, the likeliest (class-wise NMS).

Outside of graphs by torchvision's `batched_nms`; in a graph that is exported, for a whole batch and with sizes that
are fixed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops import batched_nms, nms


@dataclass(frozen=True)
class SelectConfig:
    """Which boxes are left.

    Args:
        score: the score that a box must exceed.
        iou: the overlap from which on the less likely box of a class goes.
        before: the number of the likeliest pairs of box and class that overlaps are looked for among.
        at_most: the number of boxes that are left, at most.

    Raises:
        ValueError: names the bad value and the legal ones.

    Example:
        >>> SelectConfig(score=1.5)
        Traceback (most recent call last):
        ValueError: score must lie in [0, 1]; got 1.5
    """

    score: float = 0.025
    iou: float = 0.6
    before: int = 1000
    at_most: int = 100

    def __post_init__(self) -> None:
        for name in ("score", "iou"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in [0, 1]; got {getattr(self, name)}")
        if not 1 <= self.at_most <= self.before:
            raise ValueError(f"at_most must lie in [1, {self.before}], the boxes before selection; got {self.at_most}")


class Found(NamedTuple):
    """Objects of one picture, the likeliest first.

    Args:
        scores: `(K,)`.
        labels: `(K,)`.
        boxes: `(K, 4)`.
    """

    scores: Tensor
    labels: Tensor
    boxes: Tensor


def select(scores: Tensor, boxes: Tensor, config: SelectConfig = SelectConfig()) -> Found:
    """Select the objects of one picture.

    Args:
        scores: `(A, classes)`.
        boxes: `(A, 4)`; those that are no numbers are left out.
        config: which are left.

    Example:
        >>> boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [0.0, 1.0, 10.0, 11.0], [50.0, 0.0, 60.0, 10.0]])
        >>> found = select(torch.tensor([[0.9, 0.0], [0.8, 0.7], [0.3, 0.0]]), boxes)
        >>> found.labels.tolist(), found.boxes[:, 0].tolist()
        ([0, 1, 0], [0.0, 0.0, 50.0])
    """
    legal = boxes.isfinite().all(-1, keepdim=True)
    point, label = ((scores > config.score) & legal).nonzero(as_tuple=True)
    score, order = scores[point, label].sort(descending=True, stable=True)
    score, order = score[: config.before], order[: config.before]
    point, label = point[order], label[order]
    if not len(order):
        return Found(score, label, boxes[point])
    # batched_nms moves classes apart by the largest coordinate, which keeps them apart only if none is negative.
    kept = batched_nms(boxes[point] - boxes[point].min(), score, label, config.iou)[: config.at_most]
    return Found(score[kept], label[kept], boxes[point[kept]])


class DetectorWithSelection(nn.Module):
    """A detector that selects, for graphs: shapes depend on no value.

    Args:
        detector: a network that gives `scores` `(B, A, classes)` and `boxes` `(B, A, 4)`.
        config: which boxes are left.

    Example:
        >>> class Two(nn.Module):
        ...     def forward(self, images):
        ...         return {"scores": torch.tensor([[[0.9], [0.8]]]), "boxes": torch.ones(1, 2, 4).cumsum(-1)}
        >>> found = DetectorWithSelection(Two(), SelectConfig(at_most=3))(torch.zeros(1, 3, 32, 32))
        >>> found["num"].tolist(), found["labels"].tolist()
        ([1], [[0, -1, -1]])
    """

    def __init__(self, detector: nn.Module, config: SelectConfig = SelectConfig()) -> None:
        super().__init__()
        self.detector, self.config = detector, config

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Look at pictures `(B, 3, H, W)`.

        Returns:
            `scores` and `labels` `(B, at_most)` and `boxes` `(B, at_most, 4)`, the likeliest first, and their number
            `num` `(B,)`; behind them scores and boxes are 0 and labels -1.
        """
        outputs = self.detector(images)
        scores, boxes = outputs["scores"], outputs["boxes"]
        classes, before, at_most = scores.shape[2], self.config.before, self.config.at_most
        pairs = F.pad(scores.flatten(1), (0, before))  # a small picture has fewer
        score, pair = pairs.topk(before, dim=1)  # (B, before)
        label, point = pair % classes, (pair // classes).clamp(max=scores.shape[1] - 1)
        score = torch.where(score > self.config.score, score, 0)
        box = _take(boxes, point)

        left = _nms(_apart(box, label).flatten(0, 1), score.flatten(), self.config.iou).view_as(score)
        score, best = (score * left).topk(at_most, dim=1)
        there = score > 0
        return {
            "scores": score,
            "labels": torch.where(there, label.gather(1, best), -1),
            "boxes": torch.where(there[..., None], _take(box, best), 0.0),
            "num": there.sum(1),
        }


def _apart(boxes: Tensor, labels: Tensor) -> Tensor:
    """Boxes `(B, K, 4)`, moved right by their class and down by their picture so that no two groups overlap."""
    boxes = boxes - boxes.min()
    step = boxes.max() + 1
    picture = torch.arange(boxes.shape[0], device=boxes.device)[:, None].expand_as(labels)
    shift = torch.stack([labels, picture], dim=-1) * step
    return boxes + torch.cat([shift, shift], dim=-1)


def _nms(boxes: Tensor, scores: Tensor, iou: float) -> Tensor:
    """1 for boxes `(K, 4)` that are left and 0 for others, `(K,)`; no coordinate is negative.

    torchvision promises to graphs that at least two boxes are left, and graphs insist on it; two more, of which none
    overlaps any, keep the promise.
    """
    lonely = boxes.new_tensor([[-2.0, -2.0, -1.0, -1.0], [-4.0, -4.0, -3.0, -3.0]])
    kept = nms(torch.cat([boxes, lonely]), F.pad(scores, (0, 2)), iou)
    return F.pad(torch.zeros_like(scores), (0, 2)).index_fill(0, kept, 1.0)[:-2]


def _take(boxes: Tensor, index: Tensor) -> Tensor:
    """Boxes `(B, A, 4)` at indices `(B, K)`."""
    return boxes.gather(1, index[..., None].expand(-1, -1, 4))
