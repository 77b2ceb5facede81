"""A class for every pixel of a picture: what a segmenter's outputs mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from PIL import Image
from torch import Tensor

from castling.config import check_choice
from castling.tasks.prediction import Seen
from castling.tasks.segmentation.classes import Color
from castling.tasks.segmentation.data import SegmentationData
from castling.tasks.segmentation.drawing import as_palette, beside, draw_labels, palette_image, with_legend
from castling.tasks.segmentation.metrics import resize_scores
from castling.tasks.segmentation.transforms import input_size, padded_size
from castling.tasks.task import Prediction

DrawnForm = Literal["overlay", "mask", "both"]
LEAST = 0.005  # the share from which on a class is named in a line of text, or a legend


@dataclass(frozen=True)
class MaskOptions:
    """How labels are drawn and said.

    Args:
        form: what is drawn: `overlay`, the picture with colours over it; `mask`, an image with a palette whose pixels
            are the places of classes; `both`, the two beside each other.
        opacity: how much of a colour is seen over the picture, from 0 to 1.
        legend: whether an overlay has the names of its colours below.
        runs: whether JSON has the label of every pixel, as run lengths.

    Raises:
        ValueError: for an unknown form, or an opacity outside [0, 1].
    """

    form: DrawnForm = "overlay"
    opacity: float = 0.6
    legend: bool = True
    runs: bool = False

    def __post_init__(self) -> None:
        check_choice("form", self.form, get_args(DrawnForm))
        if not 0 <= self.opacity <= 1:
            raise ValueError(f"opacity must lie from 0 to 1; got {self.opacity}")


@dataclass(frozen=True)
class MaskPrediction:
    """What the network sees in one picture.

    Args:
        name: the path, or the place in the input.
        places: uint8 `(H, W)`: the place of each pixel's class.
        labels: names of the classes.
        palette: their colours.
        options: how it is drawn and said.
        error: None, as the picture was read.
    """

    name: str
    places: np.ndarray
    labels: Sequence[str]
    palette: Sequence[Color]
    options: MaskOptions = MaskOptions()
    error: str | None = None

    @property
    def shares(self) -> dict[str, float]:
        """The share of the picture that each class has, the largest first; those with none are left out."""
        counts = np.bincount(self.places.ravel(), minlength=len(self.labels))
        order = [place for place in np.argsort(-counts, kind="stable").tolist() if counts[place]]
        return {self.labels[place]: float(counts[place] / self.places.size) for place in order}

    @property
    def mask(self) -> Image.Image:
        """An image of mode P: its pixels are the places of classes, its palette gives them colours."""
        return palette_image(self.places, self.palette)

    def line(self) -> str:
        """One line of text: the share of each class."""
        return f"{self.name}: " + ", ".join(self._named().values())

    def to_json(self) -> dict[str, Any]:
        """Plain values; where runs are asked for, `[place of the class, number of pixels]` along the rows."""
        height, width = self.places.shape
        said: dict[str, Any] = {"name": self.name, "size": [width, height], "shares": self.shares, "error": None}
        if self.options.runs:
            said |= {"labels": list(self.labels), "runs": run_lengths(self.places)}
        return said

    def draw(self, picture: Image.Image) -> Image.Image:
        """The picture with what was seen over it, the mask alone, or both."""
        options = self.options
        if options.form == "mask":
            return self.mask
        drawn = draw_labels(picture, self.places, self.palette, options.opacity)
        if options.form == "both":
            drawn = beside(drawn, self.mask.convert("RGB"))
        if not options.legend:
            return drawn
        named = self._named()
        return with_legend(drawn, list(named.values()), [self.palette[list(self.labels).index(one)] for one in named])

    def _named(self) -> dict[str, str]:
        """Words for each class that is worth a word; the largest is."""
        shares = self.shares
        least = min(LEAST, max(shares.values()))
        return {label: f"{label} {100 * share:.0f} %" for label, share in shares.items() if share >= least}


def run_lengths(places: np.ndarray) -> list[list[int]]:
    """Runs of one label along the rows, as `[label, number of pixels]`; a run may go on in the next row.

    Example:
        >>> run_lengths(np.array([[0, 0, 2], [2, 1, 1]]))
        [[0, 2], [2, 2], [1, 2]]
    """
    flat = places.ravel()
    starts = np.flatnonzero(np.diff(flat, prepend=flat[:1] ^ 1))
    lengths = np.diff(starts, append=flat.size)
    return [[int(flat[start]), int(length)] for start, length in zip(starts, lengths, strict=True)]


def interpret_masks(
    data: SegmentationData, labels: Sequence[str], palette: Sequence[Sequence[int]] | None, options: MaskOptions
) -> Callable[[Tensor, Sequence[Seen]], list[Prediction]]:
    """Makes predictions of scores `(B, K, H / 4, W / 4)` for inputs that `transforms.prepare` made.

    Args:
        data: what the network sees.
        labels: names of the classes.
        palette: their colours; made ones where None.
        options: how predictions are drawn and said.
    """
    colors = as_palette(palette, len(labels))

    def interpret(outputs: Tensor, seen: Sequence[Seen]) -> list[Prediction]:
        predictions: list[Prediction] = []
        for scores, picture in zip(outputs, seen, strict=True):
            width, height = picture.size
            columns, rows = input_size(picture.size, data)
            resized = resize_scores(scores, padded_size((rows, columns)), (rows, columns), (height, width))
            places = resized.argmax(0).cpu().numpy().astype(np.uint8)
            predictions.append(MaskPrediction(picture.name, places, labels, colors, options))
        return predictions

    return interpret
