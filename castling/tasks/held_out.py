"""A validation split taken from the training pictures, so that choices are made without a look at the test split.

Which pictures it has depends on their number, their classes and the share alone: not on the seed of a recipe, so that
all runs that are compared are measured on the same pictures.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from PIL import Image

from castling.tasks.pictures import Source

HELD_OUT = 10  # where nothing says what the splits are, one picture in so many is kept for evaluation
DRAWN_WITH = 20230611  # the seed of the drawing; another one would make other splits of every run
Whole = TypeVar("Whole", bound=Source)


def is_held_out(name: str) -> bool:
    """Whether a picture is kept for evaluation: by its name alone, so that those that come or go move no other."""
    return int(hashlib.sha256(os.fsencode(name)).hexdigest(), 16) % HELD_OUT == 0


def check_share(share: float) -> None:
    """Refuse a share that leaves nothing to train on.

    Raises:
        ValueError: if it is not in [0, 1).
    """
    if not 0 <= share < 1:
        raise ValueError(
            f"held_out is the share of the training pictures that are for validation, from 0 to below 1, such as 0.1; "
            f"got {share}"
        )


@dataclass
class Part(Generic[Whole]):
    """Some pictures of a source, as a source.

    Args:
        whole: all of them.
        rows: the places of those that belong to it, in order `(N,)`.
    """

    whole: Whole
    rows: np.ndarray

    @property
    def labels(self) -> list[str]:
        """Class names of the whole."""
        labels: list[str] = self.whole.labels  # type: ignore[attr-defined]
        return labels

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, index: int) -> str:
        """The name in the whole."""
        return self.whole.name(int(self.rows[index]))

    def read(self, index: int) -> tuple[Image.Image, Any]:
        """A picture and what is known of it."""
        return self.whole.read(int(self.rows[index]))

    def target(self, index: int) -> int:
        """The class of a picture."""
        return int(self.whole.target(int(self.rows[index])))  # type: ignore[attr-defined]

    def stored(self, index: int) -> bytes | None:
        """The picture's file as it is; None where there is none."""
        stored: bytes | None = self.whole.stored(int(self.rows[index]))  # type: ignore[attr-defined]
        return stored


def whole_of(source: Whole | Part[Whole]) -> Whole:
    """The source that a part is of, or the source itself: it knows more than its pictures."""
    return source.whole if isinstance(source, Part) else source


def open_splits(open_split: Callable[[str], Whole], share: float) -> dict[str, Whole | Part[Whole]]:
    """The pictures to train on and those to evaluate on.

    Args:
        open_split: opens `train` or `val` of the data.
        share: share of the training pictures that are for evaluation; with 0 the data's own `val` is, which is not
            opened otherwise.

    Raises:
        ValueError: if the share leaves one of the two without a picture.
    """
    train = open_split("train")
    if not share:
        return {"train": train, "val": open_split("val")}
    target = getattr(train, "target", None)
    classes = np.zeros(len(train), int) if target is None else np.array([target(i) for i in range(len(train))])
    held_out = draw_held_out(classes, share)
    if not held_out.any() or held_out.all():
        raise ValueError(f"data.held_out={share:g} leaves no picture for one of the splits: there are {len(train)}")
    return {"train": Part(train, np.flatnonzero(~held_out)), "val": Part(train, np.flatnonzero(held_out))}


def draw_held_out(classes: np.ndarray, share: float) -> np.ndarray:
    """Which pictures are for validation: of every class the share, rounded.

    A class of two pictures or more has one at least on either side; that of a single one is trained on.

    Args:
        classes: the class of each picture `(N,)`; those without one, -1, are a class of their own.
        share: share of each class.

    Returns:
        True for pictures that are held out `(N,)`.

    Example:
        >>> classes = np.repeat([0, 1, 2], [20, 10, 1])
        >>> held_out = draw_held_out(classes, 0.1)
        >>> [int(held_out[classes == number].sum()) for number in range(3)]
        [2, 1, 0]
    """
    held_out = np.zeros(len(classes), bool)
    for number in np.unique(classes):
        members = np.flatnonzero(classes == number)
        wanted = int(np.floor(share * len(members) + 0.5))
        count = min(max(wanted, 1), len(members) - 1)
        drawn = np.random.default_rng([DRAWN_WITH, int(number) + 1]).permutation(len(members))
        held_out[members[drawn[:count]]] = True
    return held_out
