"""The pictures of a split with their masks: opened with a look at a few of them, checked, and read one at a time."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from castling.config import check_choice
from castling.tasks.picture_check import spread
from castling.tasks.pictures import WrongAnnotation, open_picture_file, read_picture, upright
from castling.tasks.segmentation.classes import ClassTable
from castling.tasks.segmentation.data import (
    SegmentationData,
    find_format,
    find_pairs,
    find_root,
    layout_of,
    read_classes,
    relative,
)
from castling.tasks.segmentation.masks import read_labels

LOOKED_AT = 8  # pairs of a split that are looked at when it is opened, so that the wrong data is noticed at once
NAMED = 5  # so many files without a partner are named


@dataclass
class MaskPictures:
    """The pictures of a split with their masks, read one at a time.

    Args:
        root: what the paths are relative to.
        pictures: their paths as bytes in one array: a list of strings is copied page by page into every loader worker.
        masks: the masks of each picture, in the same way.
        table: what their values mean.
    """

    root: Path
    pictures: np.ndarray
    masks: np.ndarray
    table: ClassTable

    @property
    def labels(self) -> list[str]:
        """Names of the classes."""
        return list(self.table.names)

    @property
    def palette(self) -> list[list[int]] | None:
        """The colours that the data has for its classes; None where it has none."""
        return None if self.table.colors is None else [list(color) for color in self.table.colors]

    def __len__(self) -> int:
        return len(self.pictures)

    def name(self, index: int) -> str:
        """Path of a picture relative to the root."""
        return os.fsdecode(self.pictures[index])

    def read(self, index: int) -> tuple[Image.Image, np.ndarray]:
        """A picture, decoded to the end, and the labels `(H, W)` of its pixels, uint8; 255 for those that are ignored.

        Raises:
            WrongAnnotation: for a mask of another size, or with a value that is neither a class nor ignored.
            OSError: if one of the two cannot be read.
        """
        mask = self.root / os.fsdecode(self.masks[index])
        with open_picture_file(mask) as head:
            picture = read_picture(self.root / self.name(index), head.size)
        return picture, read_labels(mask, self.table, picture.size)

    def check(self, index: int) -> None:
        """Look at a mask as `read` does, and at no more of its picture than the head.

        Raises:
            WrongAnnotation: for a mask of another size, or with a value that is neither a class nor ignored.
            OSError: if one of the two cannot be read.
        """
        mask = self.root / os.fsdecode(self.masks[index])
        with open_picture_file(mask) as head:
            size = head.size
        with open_picture_file(self.root / self.name(index)) as head:
            shown = size if head.size == size else upright(head).size
        read_labels(mask, self.table, shown)


def open_split(data: SegmentationData, split: str) -> MaskPictures:
    """The pictures of a split with their masks, a few of which are looked at.

    Raises:
        ValueError: names a format that is not recognised, files without a partner, a missing list of classes, or a mask
            that does not fit its picture or its classes.
        FileNotFoundError: names the folder that is missing.
    """
    check_choice("split", split, ("train", "val"))
    pairs = find_pairs(data, split)
    if pairs is None:
        form = find_format(data)
        raise FileNotFoundError(f"no {split} in {data.root}: looked for {layout_of(form, split)}")
    root = find_root(data)
    for what, partner, alone in (
        ("pictures", "mask", pairs.without_mask),
        ("masks", "picture", pairs.without_picture),
    ):
        if alone:
            first = ", ".join(relative(path, root) for path in alone[:NAMED])
            raise ValueError(f"{root}: {len(alone)} {what} of {split} have no {partner}: {first}, ...")
    source = MaskPictures(root, _packed(pairs.pictures, root), _packed(pairs.masks, root), read_classes(data))
    check_masks(source, spread(range(len(source)), LOOKED_AT))
    return source


def check_masks(source: MaskPictures, indices: Iterable[int]) -> None:
    """Refuse masks that do not fit their pictures or the classes.

    Raises:
        WrongAnnotation: names the first one.
    """
    for index in indices:
        try:
            source.check(index)
        except WrongAnnotation:
            raise
        except Exception:  # training leaves it out by name, as any picture that cannot be read
            continue


def check_classes(source: MaskPictures, labels: Sequence[str]) -> None:
    """Refuse a split that has other classes than a network was made for.

    Raises:
        ValueError: names the first class that differs.
    """
    if source.labels != list(labels):
        pairs = zip([*source.labels, None], [*labels, None], strict=False)
        there, wanted = next(pair for pair in pairs if pair[0] != pair[1])
        raise ValueError(
            f"{source.root}: its {len(source.labels)} classes are not the {len(labels)} of training; first that "
            f"differs: {there!r} instead of {wanted!r}"
        )


def _packed(paths: Sequence[Path], root: Path) -> np.ndarray:
    return np.array([os.fsencode(relative(path, root)) for path in paths])
