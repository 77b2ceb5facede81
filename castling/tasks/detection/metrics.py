"""Average precision as COCO defines it, by faster-coco-eval, over the boxes of all processes together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from castling.extras import import_extra
from castling.measure.metric import Metric
from castling.tasks.detection.annotations import Objects
from castling.tasks.detection.decoding import Found, SelectConfig, select

RANGES = ("small", "medium", "large")  # COCO's areas: below 32 x 32 pixels, up to 96 x 96, above


@dataclass(frozen=True)
class Judged:
    """A picture that a detector looked at, in its own pixels.

    Args:
        index: its number in the split.
        size: width and height.
        truth: what is in it.
        found: what was seen.
    """

    index: int
    size: tuple[int, int]
    truth: Objects
    found: Found


class AveragePrecision:
    """Collects what is in pictures and what a detector says; the order of pictures does not matter.

    Args:
        labels: names of the classes.
        config: which of a detector's boxes count.
    """

    def __init__(self, labels: Sequence[str], config: SelectConfig) -> None:
        self.labels, self.config = list(labels), config
        self.pictures: list[Judged] = []

    def update(self, outputs: Mapping[str, Tensor], batch: Mapping[str, Any]) -> None:
        """Take in `scores` and `boxes` of a batch."""
        self.pictures += judge(outputs, batch, self.config)

    def merge(self, other: AveragePrecision) -> None:
        """Add the pictures of another process."""
        self.pictures += other.pictures

    def result(self) -> list[Metric]:
        """`ap`, which decides, `ap50`, `ap75`, those by the size of boxes, and `ap` and `ap50` of every class.

        What there is no box of has no number, and is left out.

        Raises:
            ValueError: if nothing was seen, or there was nothing to find.
        """
        if not self.pictures:
            raise ValueError("there was no readable picture to evaluate on")
        if not any((~picture.truth.crowd).any() for picture in self.pictures):
            raise ValueError(f"none of the {len(self.pictures)} pictures to evaluate on has a box in it")
        precision = precisions(self.pictures, len(self.labels))  # (thresholds, recalls, classes, areas)
        found = {
            "ap": _mean(precision[..., 0]),
            "ap50": _mean(precision[0, ..., 0]),
            "ap75": _mean(precision[5, ..., 0]),
        }
        found |= {f"ap_{name}": _mean(precision[..., place]) for place, name in enumerate(RANGES, start=1)}
        by_class = {f"ap_of_{label}": _mean(precision[:, :, place, 0]) for place, label in enumerate(self.labels)}
        by_class |= {f"ap50_of_{label}": _mean(precision[0, :, place, 0]) for place, label in enumerate(self.labels)}
        return [
            Metric(name, value, detail=name in by_class)
            for name, value in (found | by_class).items()
            if value is not None
        ]


@torch.no_grad()
def judge(outputs: Mapping[str, Tensor], batch: Mapping[str, Any], config: SelectConfig) -> list[Judged]:
    """What a detector says of a batch beside the truth, in the pixels of the pictures.

    Args:
        outputs: `scores` `(B, A, classes)` and `boxes` `(B, A, 4)`.
        batch: a batch of evaluation, as `castling.tasks.detection.transforms.collate` makes it.
        config: which boxes count.
    """
    sides = batch["image"].shape[-2:]
    pictures = []
    for place, (height, width) in enumerate(batch["size"].tolist()):
        scale = torch.tensor([width / sides[1], height / sides[0]] * 2)
        there = batch["labels"][place] >= 0
        labels, crowd = (batch[name][place][there].cpu() for name in ("labels", "crowd"))
        written = torch.from_numpy(batch["written"][place])
        found = select(outputs["scores"][place].float(), outputs["boxes"][place].float(), config)
        found = Found(found.scores.cpu(), found.labels.cpu(), within(found.boxes.cpu() * scale, (width, height)))
        truth = Objects(within(written[:, :4].float(), (width, height)), labels, crowd, written)
        pictures.append(Judged(int(batch["index"][place]), (width, height), truth, found))
    return pictures


def within(boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Boxes `(K, 4)`, cut at the border of a picture of this width and height.

    Example:
        >>> within(torch.tensor([[-3.0, 2.0, 20.0, 9.0]]), (10, 8)).tolist()
        [[0.0, 2.0, 10.0, 8.0]]
    """
    return boxes.clamp(min=torch.zeros(4), max=torch.tensor([*size, *size], dtype=boxes.dtype))


def precisions(pictures: Sequence[Judged], num_classes: int) -> np.ndarray:
    """Precision at 10 overlaps, 101 recalls, for every class and 4 ranges of areas; -1 where there is no box.

    Args:
        pictures: each with at most 100 boxes that count.
        num_classes: the number of classes.

    Returns:
        `(10, 101, classes, 4)`; the areas are all, small, medium, large.
    """
    coco = import_extra("faster_coco_eval", "detection")
    truth = coco.COCO(coco_truth(pictures, num_classes), print_function=_say_nothing)
    results = coco_results(pictures, range(num_classes))
    # `loadRes` takes no empty list.
    found = truth.loadRes(results) if results else coco.COCO({**truth.dataset, "annotations": []})
    evaluation = coco.COCOeval_faster(truth, found, "bbox", print_function=_say_nothing)
    evaluation.evaluate()
    evaluation.accumulate()
    return np.asarray(evaluation.eval["precision"])[..., -1]  # of the most boxes, 100


def coco_truth(pictures: Sequence[Judged], num_classes: int) -> dict[str, Any]:
    """What is in pictures, as COCO's annotations."""
    annotations: list[dict[str, Any]] = []
    for picture in pictures:
        for _, label, crowd, (x0, y0, x1, y1, area) in zip(*(part.tolist() for part in picture.truth), strict=True):
            about = {"image_id": picture.index, "category_id": label, "iscrowd": int(crowd)}
            box = [x0, y0, x1 - x0, y1 - y0]
            annotations.append({**about, "id": len(annotations) + 1, "bbox": box, "area": area})
    return {
        "images": [{"id": picture.index, "width": picture.size[0], "height": picture.size[1]} for picture in pictures],
        "annotations": annotations,
        "categories": [{"id": number, "name": str(number)} for number in range(num_classes)],
    }


def coco_results(pictures: Sequence[Judged], category_ids: Sequence[int]) -> list[dict[str, Any]]:
    """What a detector saw, as COCO's results."""
    return [
        {
            "image_id": picture.index,
            "category_id": category_ids[label],
            "bbox": [box[0], box[1], box[2] - box[0], box[3] - box[1]],
            "score": score,
        }
        for picture in pictures
        for score, label, box in zip(*(part.tolist() for part in picture.found), strict=True)
    ]


def _say_nothing(*_: object) -> None:
    """COCO's tools report every step."""


def _mean(precision: np.ndarray) -> float | None:
    known = precision[precision > -1]
    return float(known.mean()) if len(known) else None
