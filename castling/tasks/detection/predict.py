"""Boxes with labels and scores: what a detector's outputs mean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
from PIL import Image
from torch import Tensor

from castling.config import check_choice
from castling.tasks.detection.decoding import SelectConfig, select
from castling.tasks.detection.drawing import draw_boxes
from castling.tasks.detection.metrics import within
from castling.tasks.prediction import Seen
from castling.tasks.task import Prediction

JsonForm = Literal["objects", "coco"]


@dataclass(frozen=True)
class BoxOptions(SelectConfig):
    """Which boxes to show, and how JSON says them.

    Args:
        score: the score that a box must exceed.
        form: `objects`, one entry a picture, or `coco`, one entry a box as in COCO's result files, where a picture's
            id is the number that its name is, or else the name.

    Raises:
        ValueError: as for `SelectConfig`, or for an unknown form.
    """

    score: float = 0.3
    form: JsonForm = "objects"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("form", self.form, get_args(JsonForm))


class SeenObject(NamedTuple):
    """One object.

    Args:
        label: the name of its class.
        score: how sure the network is, from 0 to 1.
        box: x0 y0 x1 y1 in pixels of the picture.
        category_id: the number of its class in the data.
    """

    label: str
    score: float
    box: tuple[float, float, float, float]
    category_id: int


@dataclass(frozen=True)
class BoxPrediction:
    """What the network sees in one picture.

    Args:
        name: the path, or the place in the input.
        size: width and height of the picture.
        objects: the likeliest first.
        places: the place of each object's class, which gives its colour.
        form: how JSON says it.
        error: None, as the picture was read.
    """

    name: str
    size: tuple[int, int]
    objects: list[SeenObject]
    places: list[int]
    form: JsonForm = "objects"
    error: str | None = None

    def line(self) -> str:
        """One line of text: how many of each class, and how sure."""
        if not self.objects:
            return f"{self.name}: nothing"
        counts = Counter(found.label for found in self.objects)
        best = {label: max(found.score for found in self.objects if found.label == label) for label in counts}
        return f"{self.name}: " + ", ".join(f"{counts[label]} {label} ({best[label]:.2f})" for label in counts)

    def to_json(self) -> dict[str, Any] | list[dict[str, Any]]:
        """Plain values, in the form that was asked for."""
        if self.form == "coco":
            stem = Path(self.name).stem
            about = {"image_id": int(stem) if stem.isdecimal() else stem}
            return [
                {**about, "category_id": found.category_id, "bbox": _with_sides(found.box), "score": found.score}
                for found in self.objects
            ]
        return {
            "name": self.name,
            "size": list(self.size),
            "objects": [{**found._asdict(), "box": list(found.box)} for found in self.objects],
            "error": None,
        }

    def draw(self, picture: Image.Image) -> Image.Image:
        """The picture with boxes, labels and scores in it."""
        captions = [f"{found.label} {found.score:.2f}" for found in self.objects]
        return draw_boxes(picture, [found.box for found in self.objects], captions, self.places)


def interpret_boxes(
    labels: Sequence[str], category_ids: Sequence[int], image_size: int, options: BoxOptions
) -> Callable[[Mapping[str, Tensor], Sequence[Seen]], list[Prediction]]:
    """Makes predictions of a detector's outputs for square inputs of this side."""

    def interpret(outputs: Mapping[str, Tensor], seen: Sequence[Seen]) -> list[Prediction]:
        predictions: list[Prediction] = []
        for scores, boxes, picture in zip(outputs["scores"].float(), outputs["boxes"].float(), seen, strict=True):
            found = select(scores.cpu(), boxes.cpu(), options)
            scale = torch.tensor([side / image_size for side in picture.size] * 2)
            corners = within(found.boxes * scale, picture.size).tolist()
            places = found.labels.tolist()
            objects = [
                SeenObject(labels[place], score, tuple(box), category_ids[place])
                for place, score, box in zip(places, found.scores.tolist(), corners, strict=True)
            ]
            predictions.append(BoxPrediction(picture.name, picture.size, objects, places, options.form))
        return predictions

    return interpret


def _with_sides(box: Sequence[float]) -> list[float]:
    """COCO's form of a box: left, top, width, height."""
    x0, y0, x1, y1 = box
    return [x0, y0, x1 - x0, y1 - y0]
