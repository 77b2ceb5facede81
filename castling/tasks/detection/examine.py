"""A detector looked at closely, for its report: precision over recall, and pictures with the truth beside its boxes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image
from torchvision.ops import box_iou

from castling.tasks.detection.drawing import draw_boxes
from castling.tasks.detection.metrics import Judged, precisions
from castling.tasks.exhibits import Curves, Exhibit, Gallery
from castling.tasks.pictures import Source, in_channels

SHOWN = 6  # pictures of a gallery
MOST_LINES = 8  # curves that can be told apart
SURE = 0.3  # the score from which on a box is drawn, and counts as a mistake
OVERLAP = 0.5  # with the truth, from which on an object is found
SIDE = 360  # pixels of the longer side of a drawing


def examine(pictures: Sequence[Judged], source: Source, labels: Sequence[str]) -> list[Exhibit]:
    """Curves and galleries of a split.

    Args:
        pictures: what was seen in them.
        source: the pictures.
        labels: names of the classes.
    """
    mistakes = {picture.index: count_mistakes(picture) for picture in pictures}
    objects = [picture for picture in pictures if len(picture.truth.labels)]
    some = [objects[place] for place in np.linspace(0, len(objects) - 1, min(SHOWN, len(objects))).astype(int)]
    worst = sorted(pictures, key=lambda picture: -sum(mistakes[picture.index]))[:SHOWN]
    words = f"Truth on the left, boxes with a score above {SURE:g} on the right."
    return [
        precision_curves(pictures, labels),
        Gallery("examples", "Examples", f"{words} Spread over the split.", _beside(some, mistakes, source, labels)),
        Gallery("worst", "Most mistakes", f"{words} Most mistakes first.", _beside(worst, mistakes, source, labels)),
    ]


def precision_curves(pictures: Sequence[Judged], labels: Sequence[str]) -> Curves:
    """Precision over recall at an overlap of one half, for all classes together and each of the first."""
    found = precisions(pictures, len(labels))[0, :, :, 0]  # (recalls, classes)
    there = [place for place in range(len(labels)) if found[0, place] > -1]
    recalls = np.linspace(0, 1, len(found)).tolist()
    lines = {"all classes": (recalls, found[:, there].mean(1).tolist())}
    if len(there) > 1:
        lines |= {labels[place]: (recalls, found[:, place].tolist()) for place in there[: MOST_LINES - 1]}
    caption = "At an overlap of one half, as COCO interpolates it. The area below a curve is its ap50."
    return Curves("precision", "Precision over recall", caption, "recall", "precision", lines)


def count_mistakes(picture: Judged) -> tuple[int, int]:
    """Objects that were missed, and boxes where there is no such object.

    Example:
        >>> import torch
        >>> from castling.tasks.detection.annotations import Objects
        >>> from castling.tasks.detection.decoding import Found
        >>> box, label = torch.tensor([[0.0, 0.0, 9.0, 9.0]]), torch.tensor([0])
        >>> found = Found(torch.tensor([0.9]), label, box + 20)
        >>> count_mistakes(Judged(0, (40, 40), Objects(box, label, label > 0, torch.zeros(1, 5)), found))
        (1, 1)
    """
    sure = picture.found.scores > SURE
    truth, crowd = picture.truth, picture.truth.crowd
    paired = box_iou(truth.boxes, picture.found.boxes[sure]) >= OVERLAP
    paired &= truth.labels[:, None] == picture.found.labels[sure]
    missed = ~paired.any(1) & ~crowd
    return int(missed.sum()), int((~paired.any(0)).sum())


def _beside(
    pictures: Sequence[Judged], mistakes: dict[int, tuple[int, int]], source: Source, labels: Sequence[str]
) -> list[tuple[Image.Image, str]]:
    drawn = []
    for picture in pictures:
        missed, wrong = mistakes[picture.index]
        words = f"{source.name(picture.index)}: {missed} of {len(picture.truth.labels)} missed, {wrong} too many"
        drawn.append((_pair(picture, in_channels(source.read(picture.index)[0], 3), labels), words))
    return drawn


def _pair(judged: Judged, picture: Image.Image, labels: Sequence[str]) -> Image.Image:
    """The picture twice: with the truth, and with what was seen."""
    scale = SIDE / max(picture.size)
    width, height = (max(1, round(side * scale)) for side in picture.size)
    small = picture.resize((width, height))
    truth, found = judged.truth, judged.found
    sure = found.scores > SURE
    captions = [
        f"{labels[place]} {score:.2f}"
        for place, score in zip(found.labels[sure].tolist(), found.scores[sure].tolist(), strict=True)
    ]
    pair = Image.new("RGB", (2 * width + 4, height), "white")
    true_words = [labels[place] for place in truth.labels.tolist()]
    pair.paste(draw_boxes(small, (truth.boxes * scale).tolist(), true_words, truth.labels.tolist()), (0, 0))
    seen = draw_boxes(small, (found.boxes[sure] * scale).tolist(), captions, found.labels[sure].tolist())
    pair.paste(seen, (width + 4, 0))
    return pair
