"""Boxes with labels in one form, whatever files they come from.

A reader gives what the files of a split say (`Written`), bad boxes and all, which is what a check of the data looks at;
`usable` keeps what can be trained on, names what it leaves out, and refuses what must not be trained on silently.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from castling.sentences import one_line
from castling.sentences import shown as shown_value
from castling.tasks.pictures import read_picture

NAMED = 5  # so many bad boxes are named; all are counted
THIN = 0.01  # pixels: what is thinner is a slip of rounding, and no box
SENTENCE = 1000  # characters of what is said of a file
SLACK = 1.0  # pixels by which a box may leave its picture: formats round, and count from 0 or from 1

logger = logging.getLogger(__name__)


class Objects(NamedTuple):
    """What is in one picture.

    Args:
        boxes: float32 `(M, 4)`: x0 y0 x1 y1 in pixels.
        labels: int64 `(M,)`: places in the names of the classes.
        crowd: bool `(M,)`: boxes around groups, or boxes that nobody is asked to find.
        written: float64 `(M, 5)`: x0 y0 x1 y1 and area as the files say, which metrics go by: rounded, an object of
            32 x 32 pixels is on one side of COCO's limit or on the other.
    """

    boxes: Tensor
    labels: Tensor
    crowd: Tensor
    written: Tensor


class Dropped(NamedTuple):
    """Boxes that are left out, or cut, for one reason.

    Args:
        total: the number of all.
        first: the places where the first of them are written.
    """

    total: int
    first: tuple[str, ...]


class Box(NamedTuple):
    """One box as its file says.

    Args:
        owner: the place of its picture in the names.
        corners: x0 y0 x1 y1 in pixels.
        category: what its file calls its class.
        crowd: whether it is around a group.
        mark: the line, or number, that it has in its file.
        area: pixels of the object, of which the box may hold others too; None for those of the box.
    """

    owner: int
    corners: tuple[float, float, float, float]
    category: Hashable
    crowd: bool
    mark: int
    area: float | None = None


@dataclass
class Written:
    """What the files of one split say.

    Args:
        folder: what the names are relative to.
        names: the pictures.
        sizes: width and height of each; 0 where no file says.
        ids: the numbers that the pictures have in their files, or their places.
        files: the file that describes each picture; None where there is none.
        unit: what a mark counts, such as `line`.
        classes: what files call a class, and its name, in order.
        boxes: all of them, in the order of their pictures.
        broken: sentences about what could not be read.
        strays: annotations of pictures that are not there, or not listed.
        unlisted: pictures in the folder that are in no list.
    """

    folder: Path
    names: list[str]
    sizes: list[tuple[int, int]]
    ids: list[int]
    files: list[Path | None]
    unit: str
    classes: dict[Hashable, str]
    boxes: list[Box] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)
    unlisted: list[str] = field(default_factory=list)

    def place(self, box: Box) -> str:
        """Where a box is written."""
        return f"{self.names[box.owner]} ({self.files[box.owner]}, {self.unit} {box.mark})"

    def corners(self) -> np.ndarray:
        """All boxes `(K, 4)`."""
        return np.array([box.corners for box in self.boxes], np.float64).reshape(-1, 4)

    def limits(self) -> np.ndarray:
        """Width and height `(K, 2)` of each box's picture; infinite where no file says."""
        sizes = np.array(self.sizes, np.float64).reshape(-1, 2)
        sizes[sizes <= 0] = np.inf
        return sizes[[box.owner for box in self.boxes]]


@dataclass
class Annotations:
    """The pictures of a split with their boxes, read one at a time; arrays only, so that loader workers can get it.

    Args:
        root: what the paths are relative to.
        paths: the paths as bytes in one array: a list of strings is copied page by page into every loader worker.
        sizes: width and height of each `(N, 2)`; 0 where no file says.
        ids: the numbers of the pictures in their files `(N,)`.
        starts: the first box of each picture, and the number of all `(N + 1,)`.
        boxes: all boxes, cut at the border of their pictures `(K, 4)`.
        written: all boxes and areas as the files say `(K, 5)`.
        classes: the label of each `(K,)`.
        crowd: whether each is around a group `(K,)`.
        labels: names of the classes.
        category_ids: the numbers of the classes in the files, in the same order.
        dropped: boxes that are left out, by reason; those that were cut at the border, as `cut`.
    """

    root: Path
    paths: np.ndarray
    sizes: np.ndarray
    ids: np.ndarray
    starts: np.ndarray
    boxes: np.ndarray
    written: np.ndarray
    classes: np.ndarray
    crowd: np.ndarray
    labels: list[str]
    category_ids: list[int]
    dropped: dict[str, Dropped] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, index: int) -> str:
        """Path of a picture relative to the root."""
        return os.fsdecode(self.paths[index])

    def objects(self, index: int) -> Objects:
        """What is in a picture, in its pixels."""
        span = slice(self.starts[index], self.starts[index + 1])
        arrays = (self.boxes, self.classes, self.crowd, self.written)
        return Objects(*(torch.from_numpy(array[span].copy()) for array in arrays))

    def read(self, index: int) -> tuple[Image.Image, Objects]:
        """A picture, decoded to the end, and what is in it.

        Raises:
            ValueError: if it has another size than its boxes were drawn for.
        """
        wanted = tuple(map(int, self.sizes[index]))
        picture = read_picture(self.root / self.name(index), wanted)
        if min(wanted) > 0 and picture.size != wanted:
            found, said = shown(picture.size), shown(wanted)
            raise ValueError(f"{self.root / self.name(index)} has {found} pixels, its annotation says {said}")
        return picture, self.objects(index)


def shown(size: Sequence[int]) -> str:
    """A size in words.

    Example:
        >>> shown((640, 480))
        '640 x 480'
    """
    return " x ".join(map(str, size))


def degenerate(boxes: np.ndarray, limits: np.ndarray) -> dict[str, np.ndarray]:
    """Boxes that nothing can be learned from, by reason; a box has one reason at most.

    Args:
        boxes: x0 y0 x1 y1 `(K, 4)`.
        limits: width and height of each box's picture `(K, 2)`.

    Returns:
        A mask `(K,)` for each reason.

    Example:
        >>> boxes = np.array([[0, 0, 5, 5], [5, 5, 5, 9], [20, 0, 30, 5], [0, 0, np.nan, 5]])
        >>> {reason: mask.tolist() for reason, mask in degenerate(boxes, np.full((4, 2), 10.0)).items() if mask.any()}
        {'not finite': [False, False, False, True], 'empty': [False, True, False, False], \
'outside': [False, False, True, False]}
    """
    finite = np.isfinite(boxes).all(1)
    boxes = np.where(finite[:, None], boxes, 0)
    sides = boxes[:, 2:] - boxes[:, :2]
    inside = np.minimum(boxes[:, 2:], limits) - np.maximum(boxes[:, :2], 0)
    masks, left = {"not finite": ~finite}, finite
    for reason, bad in (("inverted", sides < 0), ("empty", sides < THIN), ("outside", inside < THIN)):
        masks[reason] = left & bad.any(1)
        left = left & ~masks[reason]
    return masks


def leaving(boxes: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Which boxes `(K, 4)` reach over the border of their pictures `(K, 2)` by more than rounding."""
    over = (boxes[:, :2] < -SLACK) | (boxes[:, 2:] > limits + SLACK)
    return np.asarray(over.any(1))


def usable(written: Written) -> Annotations:
    """What can be trained on: boxes that are none are left out, the others end at the border of their picture.

    Raises:
        ValueError: for files that are broken, a class that is in no list of classes, a split without pictures, or one
            whose boxes are all left out.
    """
    if written.broken:
        more = f" (and {len(written.broken) - 1} more)" if written.broken[1:] else ""
        raise ValueError(f"{one_line(written.broken[0], SENTENCE)}{more}")
    unknown = next((box for box in written.boxes if box.category not in written.classes), None)
    if unknown is not None:
        legal = ", ".join(map(repr, written.classes)) or "none"
        said = f"{written.place(unknown)}: unknown class {shown_value(unknown.category)}; legal: {legal}"
        raise ValueError(one_line(said, SENTENCE))
    if not written.names:
        raise ValueError(f"no pictures listed for {written.folder}")
    boxes, limits = written.corners(), written.limits()
    dropped = {"without a picture": Dropped(len(written.strays), tuple(written.strays[:NAMED]))}
    masks = degenerate(boxes, limits)
    kept = ~np.any(list(masks.values()), axis=0)
    for reason, mask in {**masks, "cut": kept & leaving(boxes, limits)}.items():
        first = [written.place(written.boxes[index]) for index in np.flatnonzero(mask)[:NAMED]]
        dropped[reason] = Dropped(int(mask.sum()), tuple(first))
    dropped = {reason: those for reason, those in dropped.items() if those.total}
    for reason, those in dropped.items():
        words = "cut at the border of the picture" if reason == "cut" else f"left out, {reason}"
        names = one_line(", ".join(those.first))
        logger.warning("%s: %d annotations %s, first %s", written.folder, those.total, words, names)
    if len(boxes) and not kept.any():
        reasons = ", ".join(f"{those.total} {reason}" for reason, those in dropped.items())
        raise ValueError(f"{written.folder}: none of {len(boxes)} boxes can be used: {reasons}")
    places = {category: place for place, category in enumerate(written.classes)}
    owners = np.array([box.owner for box in written.boxes], np.int64)
    limits = np.concatenate([limits, limits], 1)
    order = np.flatnonzero(kept)[np.argsort(owners[kept], kind="stable")]
    return Annotations(
        root=written.folder,
        paths=np.array([os.fsencode(name) for name in written.names]),
        sizes=np.array(written.sizes, np.int64).reshape(-1, 2),
        ids=np.array(written.ids, np.int64),
        starts=np.searchsorted(owners[order], np.arange(len(written.names) + 1)),
        boxes=np.clip(boxes, 0, limits)[order].astype(np.float32),
        written=_with_areas(boxes[order], [written.boxes[place].area for place in order]),
        classes=np.array([places[box.category] for box in written.boxes], np.int64)[order],
        crowd=np.array([box.crowd for box in written.boxes], bool)[order],
        labels=list(written.classes.values()),
        category_ids=[key if isinstance(key, int) else place for place, key in enumerate(written.classes)],
        dropped=dropped,
    )


def _with_areas(boxes: np.ndarray, areas: Sequence[float | None]) -> np.ndarray:
    """Boxes `(K, 4)` and their areas, those of the boxes where None, as `(K, 5)`."""
    products = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    filled = [product if area is None else area for product, area in zip(products, areas, strict=True)]
    return np.column_stack([boxes, np.array(filled, np.float64)])
