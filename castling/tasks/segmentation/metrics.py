"""Mean intersection over union and accuracies, of exact counts of pixels that several processes add up."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from castling.measure.metric import Metric


@dataclass(frozen=True)
class Judged:
    """A picture that a network looked at, at its own size.

    Args:
        index: its number in the split.
        truth: long `(h, w)`: the labels; 255 for what is ignored.
        found: long `(h, w)`: what was seen.
    """

    index: int
    truth: Tensor
    found: Tensor


class MeanIoU:
    """Counts how often pixels of one class were taken for which; the order of pictures does not matter.

    Args:
        labels: names of the classes.

    Attributes:
        counts: int64 `(K, K)`: rows are the truth, columns what was seen.

    Example:
        >>> meter = MeanIoU(["sky", "road"])
        >>> truth = torch.tensor([[[0, 0, 1, 255]]])
        >>> size = torch.tensor([[1, 4]])
        >>> scores = torch.tensor([[[[1.0, 0, 0, 0]], [[0.0, 1, 1, 1]]]])
        >>> meter.update(scores, {"image": truth, "labels": truth, "seen": size, "size": size, "index": size[:, 0]})
        >>> [(metric.name, metric.shown) for metric in meter.result()[:3]]
        [('miou', '50.00 %'), ('macc', '75.00 %'), ('pacc', '66.67 %')]
    """

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels = list(labels)
        self.counts = torch.zeros(len(self.labels), len(self.labels), dtype=torch.int64)

    def update(self, outputs: Tensor, batch: Mapping[str, Any]) -> None:
        """Count scores `(B, K, H / 4, W / 4)` against the batch's `labels`."""
        for picture in judge(outputs, batch):
            self.counts += confusion(picture.truth, picture.found, len(self.labels)).cpu()

    def merge(self, other: MeanIoU) -> None:
        """Add the counts of another process."""
        self.counts += other.counts

    def result(self) -> list[Metric]:
        """`miou`, which decides, `macc`, `pacc`, and the IoU of every class.

        A class that was neither there nor seen has no number, and is left out.

        Raises:
            ValueError: if nothing was counted.
        """
        counts = self.counts.numpy()
        if not counts.sum():
            raise ValueError("there was no readable picture with a labelled pixel to evaluate on")
        ious, accuracies = iou_of(counts), accuracy_of(counts)
        found = [
            Metric("miou", float(np.nanmean(ious))),
            Metric("macc", float(np.nanmean(accuracies))),
            Metric("pacc", float(np.trace(counts) / counts.sum())),
        ]
        by_class = zip(self.labels, ious.tolist(), strict=True)
        return found + [Metric(f"iou_of_{name}", iou, detail=True) for name, iou in by_class if not math.isnan(iou)]


def judge(outputs: Tensor, batch: Mapping[str, Any]) -> Iterator[Judged]:
    """What a network says of a batch beside the truth, picture by picture, at their own sizes.

    Args:
        outputs: scores `(B, K, H / 4, W / 4)`.
        batch: a batch as `castling.tasks.segmentation.transforms.collate` makes it for evaluation.
    """
    numbers, sizes = batch["index"].tolist(), batch["size"].tolist()
    for place, (index, (height, width)) in enumerate(zip(numbers, sizes, strict=True)):
        yield Judged(index, batch["labels"][place, :height, :width], _label_map(outputs[place], batch, place))


def label_maps(scores: Tensor, batch: Mapping[str, Any]) -> list[Tensor]:
    """The class that has the best score at each pixel of each picture.

    Args:
        scores: `(B, K, H / 4, W / 4)`.
        batch: `image` of `(B, C, H, W)`; `seen` and `size`, rows and columns of each picture in it and by itself.

    Returns:
        long `(h, w)` of each.
    """
    return [_label_map(one, batch, place) for place, one in enumerate(scores)]


def resize_scores(scores: Tensor, shape: Sequence[int], seen: Sequence[int], size: Sequence[int]) -> Tensor:
    """Scores of a padded input, for each pixel of the picture in it.

    The picture may end within a cell of the scores: places are reckoned in pixels, so that nothing is shifted, and
    cells that are all padding are not looked at.

    Args:
        scores: `(K, H / s, W / s)`.
        shape: H and W.
        seen: rows and columns of the input that are picture.
        size: rows and columns of the picture itself.

    Returns:
        `(K, *size)`, bilinear.
    """
    cells = [side * cut / whole for side, cut, whole in zip(scores.shape[-2:], seen, shape, strict=True)]
    kept = scores[None, :, : math.ceil(cells[0]), : math.ceil(cells[1])].float()
    # One row and column more, so that rounding never leaves too few; beyond the border all is as at the border.
    kept = F.pad(kept, (0, 1, 0, 1), mode="replicate")
    factors = [side / cut for side, cut in zip(size, cells, strict=True)]
    resized = F.interpolate(kept, scale_factor=factors, mode="bilinear", recompute_scale_factor=False)
    return resized[0, :, : size[0], : size[1]]


def confusion(truth: Tensor, found: Tensor, num_classes: int) -> Tensor:
    """How often pixels of one class were taken for which: int64 `(K, K)`, rows are the truth.

    Args:
        truth: labels of any shape; those that are no class are not counted.
        found: labels of the same shape.
        num_classes: K.

    Example:
        >>> confusion(torch.tensor([0, 0, 1, 255]), torch.tensor([0, 1, 1, 1]), 2).tolist()
        [[1, 1], [0, 1]]
    """
    counted = truth < num_classes
    pairs = truth[counted].long() * num_classes + found[counted].long()
    return torch.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)


def iou_of(counts: np.ndarray) -> np.ndarray:
    """The intersection over union of each class `(K,)`; NaN for one that was neither there nor seen."""
    right = np.diagonal(counts).astype(np.float64)
    return _shares(right, counts.sum(0) + counts.sum(1) - right)


def accuracy_of(counts: np.ndarray) -> np.ndarray:
    """The share of each class that was seen as such `(K,)`; NaN for one that was not there."""
    return _shares(np.diagonal(counts).astype(np.float64), counts.sum(1))


def _shares(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.full(len(part), np.nan), where=whole > 0)


def _label_map(scores: Tensor, batch: Mapping[str, Any], place: int) -> Tensor:
    seen, size = (batch[name][place].tolist() for name in ("seen", "size"))
    return resize_scores(scores, batch["image"].shape[-2:], seen, size).argmax(0)
