"""Splits of archives as sources: with classes, which both splits count alike, or pictures alone."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from castling.tasks.held_out import is_held_out
from castling.tasks.shards import imagenet
from castling.tasks.shards.index import ShardIndex
from castling.tasks.shards.layout import EXPECTED, SPLITS, all_archives, archives_of, index_of
from castling.tasks.shards.source import ShardPictures, ShardSource

logger = logging.getLogger(__name__)
CLASSES = "classes.txt"
MOST_CLASSES = 2**20  # a number beyond it is no class


def open_shards(root: Path, split: str) -> ShardSource:
    """One split of pictures in archives, with their classes.

    Args:
        root: the folder that the archives are in.
        split: `train` or `val`.

    Raises:
        ValueError: names what is missing, cannot be read, or does not fit.

    Example:
        >>> import tarfile, tempfile
        >>> root = Path(tempfile.mkdtemp())
        >>> _ = (root / "0001.jpg").write_bytes(b"..."), (root / "0001.cls").write_text("2")
        >>> with tarfile.open(root / "train-000000.tar", "w") as tar:
        ...     for name in ("0001.jpg", "0001.cls"):
        ...         tar.add(root / name, name)
        >>> source = open_shards(root, "train")
        >>> source.name(0), source.target(0), source.labels
        ('train-000000.tar/0001.jpg', 2, ['0', '1', '2'])
    """
    indices = {name: _labelled_index(root, name) for name in dict.fromkeys(("train", split))}
    labels, place = class_names(root, indices["train"])
    index = indices[split]
    texts = index.label_texts()
    classes = np.array([class_of(text, place) for text in texts], np.int64)
    unknown = sorted(text for text, number in zip(texts, classes, strict=True) if number < 0)
    if unknown:
        known = CLASSES if (root / CLASSES).is_file() else "train"
        raise ValueError(f"{split} of {root} has classes that {known} lacks: {_some(unknown)}; there: {_some(labels)}")
    _warn_of_gaps(root, split, index, classes, labels)
    return ShardSource(index, labels=labels, classes=classes)


def open_shard_pictures(root: Path, split: str) -> ShardPictures:
    """One split of pictures in archives, without their classes.

    Where no archives are called `val` (or `validation`, or `test`), a tenth of all pictures, chosen by their names, is
    kept for evaluation.

    Args:
        root: the folder that the archives are in.
        split: `train` or `val`.

    Raises:
        ValueError: says that there is no picture, or names what cannot be read.
    """
    found = {name: archives_of(root, names) for name, names in SPLITS.items()}
    if all(found.values()):
        return ShardPictures(index_of(root, split, found[split]))
    paths = found["train"] or all_archives(root)
    if not paths:
        raise ValueError(f"no archives in {root}: expected {EXPECTED}, or any .tar")
    index = index_of(root, "train" if found["train"] else "all", paths)
    held_out = np.fromiter((is_held_out(index.name(row)) for row in range(len(index))), bool, len(index))
    rows = np.flatnonzero(held_out == (split == "val")).astype(np.int32)
    if not len(rows):
        raise ValueError(f"no pictures for {split} in {root}")
    return ShardPictures(index, rows)


def _labelled_index(root: Path, split: str) -> ShardIndex:
    paths = archives_of(root, SPLITS[split])
    if not paths:
        there = _some(sorted(path.name for path in root.iterdir() if not path.name.startswith(".")))
        raise ValueError(f"no archives for {split} in {root}: expected {EXPECTED}; found {there}")
    if paths[0].name == imagenet.VAL and not imagenet.label_files(root):
        raise ValueError(f"{paths[0]} has no labels in it: expected {imagenet.EXPECTED}")
    index = index_of(root, split, paths)
    if not (index.label >= 0).any():
        raise ValueError(
            f"no picture of {split} in {root} has a label: expected KEY.cls beside KEY.jpg, first {index.name(0)}"
        )
    return index


def class_names(root: Path, train: ShardIndex) -> tuple[list[str], dict[str, int]]:
    """Class names, and which class a label means.

    They are the lines of `classes.txt`, to which labels are numbers or names; or else numbers up to the largest label;
    or, where labels are no numbers, these themselves.
    """
    if (root / CLASSES).is_file():
        names = [line.strip() for line in (root / CLASSES).read_text(encoding="utf-8").splitlines() if line.strip()]
        by_name = {name: number for number, name in enumerate(names)}
        return names, by_name | {str(number): number for number in range(len(names))}
    texts = train.label_texts()
    if not texts or not all(_is_number(text) for text in texts):
        return sorted(texts), {text: number for number, text in enumerate(sorted(texts))}
    largest = max((text.lstrip("0") or "0" for text in texts), key=lambda text: (len(text), text))
    if len(largest) > len(str(MOST_CLASSES)) or int(largest) >= MOST_CLASSES:
        raise ValueError(
            f"{largest[:30]} cannot be the number of a class in {root}: they go from 0 to {MOST_CLASSES - 1:,}"
        )
    numbers = [str(number) for number in range(int(largest) + 1)]
    return numbers, {text: number for number, text in enumerate(numbers)}


def class_of(text: str, place: dict[str, int]) -> int:
    """The class of a label, -1 where there is none; `007` is 7."""
    return place.get(text, place.get(text.lstrip("0") or "0", -1) if _is_number(text) else -1)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _warn_of_gaps(root: Path, split: str, index: ShardIndex, classes: np.ndarray, labels: Sequence[str]) -> None:
    without = np.flatnonzero(index.label < 0)
    if len(without):
        some = _some([index.name(int(row)) for row in without[:10]])
        logger.warning("%s of %s: %d pictures without a label, such as %s", split, root, len(without), some)
    empty = sorted(set(range(len(labels))) - set(classes.tolist()))
    if empty:
        some = _some([labels[number] for number in empty])
        logger.warning(
            "no pictures in %s of %s of these classes, %d of %d: %s", split, root, len(empty), len(labels), some
        )


def _some(names: Sequence[str], limit: int = 10) -> str:
    more = f" and {len(names) - limit:,} more" if len(names) > limit else ""
    return (", ".join(names[:limit]) or "nothing") + more
