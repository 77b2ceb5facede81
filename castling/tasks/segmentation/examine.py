"""A segmenter looked at closely, for its report: each class, what it is taken for, and pictures beside the truth."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import nlargest

import numpy as np
from PIL import Image
from torch import Tensor

from castling.tasks.exhibits import Bars, Exhibit, Gallery, Heatmap
from castling.tasks.picture_check import spread
from castling.tasks.pictures import Source, in_channels
from castling.tasks.segmentation.classes import Color
from castling.tasks.segmentation.drawing import as_palette, beside, draw_labels, shrunk, with_legend
from castling.tasks.segmentation.metrics import Judged, confusion, iou_of

SHOWN = 6  # pictures of a gallery
MOST_CLASSES = 40  # rows and columns of a confusion matrix that can be read
SIDE = 360  # pixels of the longer side of a drawing
OPACITY = 0.6


@dataclass(frozen=True)
class Kept:
    """A picture that may be shown.

    Args:
        miou: its own mean IoU.
        index: its number in the split.
        truth: uint8 `(h, w)`.
        found: uint8 `(h, w)`.
    """

    miou: float
    index: int
    truth: np.ndarray
    found: np.ndarray


def examine(
    pictures: Iterable[Judged],
    source: Source,
    labels: Sequence[str],
    palette: Sequence[Sequence[int]] | None = None,
) -> list[Exhibit]:
    """The IoU of each class, the confusion matrix, and galleries of a split.

    Args:
        pictures: what was seen in them, one at a time: only those that are shown are kept.
        source: the pictures.
        labels: names of the classes.
        palette: their colours; made ones where None.

    Raises:
        ValueError: if no pixel has a label.
    """
    counts = np.zeros((len(labels), len(labels)), np.int64)
    wanted = set(spread(range(len(source)), SHOWN))
    some: list[Kept] = []
    worst: list[Kept] = []
    for picture in pictures:
        own = confusion(picture.truth, picture.found, len(labels)).cpu().numpy()
        if not own.sum():
            continue
        counts += own
        kept = Kept(
            float(np.nanmean(iou_of(own))), picture.index, *(_small(part) for part in (picture.truth, picture.found))
        )
        if picture.index in wanted:
            some.append(kept)
        worst = nlargest(SHOWN, [*worst, kept], key=lambda one: -one.miou)
    if not counts.sum():
        raise ValueError("there was no readable picture with a labelled pixel to look at")
    colors = as_palette(palette, len(labels))
    words = "Truth on the left, what was seen on the right; what is ignored has no colour."
    return [
        class_bars(counts, labels),
        confusion_table(counts, labels),
        Gallery("examples", "Examples", f"{words} Spread over the split.", _drawn(some, source, labels, colors)),
        Gallery("worst", "Worst pictures", f"{words} Lowest mean IoU first.", _drawn(worst, source, labels, colors)),
    ]


def class_bars(counts: np.ndarray, labels: Sequence[str]) -> Bars:
    """The IoU of each class, the best first; those that were neither there nor seen are left out.

    Example:
        >>> class_bars(np.array([[1, 1, 0], [0, 4, 0], [0, 0, 0]]), ["sky", "road", "sign"]).values
        {'road': 0.8, 'sky': 0.5}
    """
    found = {label: iou for label, iou in zip(labels, iou_of(counts).tolist(), strict=True) if iou == iou}
    caption = "Intersection over union of each class, in percent, over all pixels of the split."
    values = dict(sorted(found.items(), key=lambda pair: -pair[1]))
    return Bars("classes", "Classes", caption, "intersection over union", values)


def confusion_table(counts: np.ndarray, labels: Sequence[str]) -> Heatmap:
    """What pixels of each class were taken for, as shares of the class; of many classes, the most frequent."""
    often = np.argsort(-counts.sum(1), kind="stable")[:MOST_CLASSES]
    shown = np.sort(often)
    totals = counts.sum(1, keepdims=True)
    shares = np.divide(counts, totals, out=np.full(counts.shape, np.nan), where=totals > 0)
    caption = "Pixels of the class on the left that were taken for the class above, in percent of the class."
    if len(shown) < len(labels):
        caption += f" The {len(shown)} most frequent of {len(labels)} classes."
    names = [labels[place] for place in shown]
    values = shares[np.ix_(shown, shown)].tolist()
    return Heatmap("confusion", "Confusion matrix", caption, "truth", "seen as", names, names, values)


def _small(labels: Tensor) -> np.ndarray:
    return labels.cpu().numpy().astype(np.uint8)


def _drawn(
    pictures: Sequence[Kept], source: Source, labels: Sequence[str], colors: Sequence[Color]
) -> list[tuple[Image.Image, str]]:
    drawn = []
    for kept in pictures:
        picture = in_channels(source.read(kept.index)[0], 3)
        small, truth = shrunk(picture, kept.truth, SIDE)
        _, found = shrunk(picture, kept.found, SIDE)
        pair = beside(*(draw_labels(small, part, colors, OPACITY) for part in (truth, found)))
        there = [place for place in np.unique([truth, found]).tolist() if place < len(labels)]
        legend = with_legend(pair, [labels[place] for place in there], [colors[place] for place in there])
        drawn.append((legend, f"{source.name(kept.index)}: mean IoU {100 * kept.miou:.1f} %"))
    return drawn
