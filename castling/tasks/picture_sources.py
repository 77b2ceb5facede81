"""Where labelled pictures come from: folders as ImageNet's, archives, MNIST's and CIFAR's files, Hugging Face, digits.

A source is one split, read one picture at a time; it holds arrays and paths only, so that loader workers can get it.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np
from PIL import Image

from castling.config import check_choice
from castling.extras import import_extra
from castling.tasks.array_files import CIFAR_FOLDERS, ArraySource, read_cifar, read_idx
from castling.tasks.pictures import ENDINGS, Source, pictures_in, read_picture, strict_decoding, upright
from castling.tasks.shards.layout import has_archives
from castling.tasks.shards.opening import open_shards

SourceName = Literal["digits", "folder", "shards", "idx", "cifar", "huggingface"]
Split = Literal["train", "val"]

logger = logging.getLogger(__name__)


class LabelledSource(Source, Protocol):
    """Pictures with their classes; `labels` are the class names."""

    labels: list[str]

    def target(self, index: int) -> int:
        """The class of a picture, which is not read for it; -1 where it has none."""

    def stored(self, index: int) -> bytes | None:
        """The picture's file as it is; None where there is none.

        Raises:
            OSError: if it cannot be read.
        """


def open_source(
    kind: str,
    split: str,
    root: Path | str | None = None,
    *,
    name: str | None = None,
    image_column: str = "image",
    label_column: str = "label",
) -> LabelledSource:
    """Open one split of a dataset of labelled pictures.

    Args:
        kind: `digits` (scikit-learn's, every fifth of a class held out), `folder` (`train/CLASS/*.jpg` and
            `val/CLASS/*.jpg`), `shards` (tar archives: WebDataset's or ImageNet's own), `idx` (MNIST's files), `cifar`
            (CIFAR's files) or `huggingface`.
        split: `train` or `val`. Where there is no `val`, `validation` or `test` stands for it.
        root: the folder of `folder`, `shards`, `idx` and `cifar`; the others need none.
        name: for `huggingface`, a dataset's name, or a folder that `save_to_disk` wrote.
        image_column: for `huggingface`, the column of the pictures.
        label_column: for `huggingface`, the column of their classes.

    Raises:
        ValueError: names an unknown kind, split, class or column, a missing argument, or a file that is damaged.
        FileNotFoundError: names the folder or file that is missing.
        ImportError: says which extra to install.

    Example:
        >>> digits = open_source("digits", "val")
        >>> picture, target = digits.read(0)
        >>> digits.name(0), picture.size, picture.mode, digits.labels[target]
        ('val/0', (8, 8), 'L', '5')
    """
    check_choice("source", kind, get_args(SourceName))
    check_choice("split", split, get_args(Split))
    if kind == "digits":
        return _read_digits(split)
    if kind == "huggingface":
        if name is None:
            raise ValueError("source 'huggingface' needs a name: a dataset's name or a folder that save_to_disk wrote")
        return _open_huggingface(name, split, image_column, label_column)
    if root is None:
        raise ValueError(f"source {kind!r} needs a root: the folder the dataset is in")
    root = Path(root).expanduser()
    if not root.is_dir():
        raise FileNotFoundError(f"no folder {root}")
    if kind == "shards":
        return open_shards(root, split)
    if kind == "idx":
        return read_idx(root, split)
    if kind == "cifar":
        return read_cifar(root, split)
    return _open_folder(root, split)


def recognise_source(root: Path) -> SourceName:
    """The kind of source that a folder holds.

    Args:
        root: the folder.

    Raises:
        ValueError: if it looks like none.
        FileNotFoundError: names the folder that is missing.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"no folder {root}")
    if any(root.glob("train-images-idx3-ubyte*")):
        return "idx"
    if any((root / marker).is_file() for marker in ("dataset_dict.json", "state.json")):
        return "huggingface"
    if any((root / name).is_dir() for name in CIFAR_FOLDERS) or any(root.glob("test_batch*")):
        return "cifar"
    if has_archives(root):
        return "shards"
    if (root / "train").is_dir():
        return "folder"
    kinds = ", ".join(get_args(SourceName))
    there = _shorten(_entries(root))
    raise ValueError(f"no labelled pictures recognised in {root}, which has {there}; say by --source: {kinds}")


def _read_digits(split: str) -> ArraySource:
    digits = import_extra("sklearn.datasets", "demo").load_digits()
    rank = np.zeros(len(digits.target), int)  # of each picture among those of its class
    for target in range(10):
        members = digits.target == target
        rank[members] = np.arange(members.sum())
    chosen = (rank % 5 == 4) == (split == "val")
    pictures = np.rint(digits.images[chosen] * (255 / 16)).astype(np.uint8)  # (N, 8, 8)
    return ArraySource(pictures, digits.target[chosen], [str(number) for number in range(10)], split)


@dataclass
class FolderSource:
    """Pictures in files, one folder per class.

    Args:
        root: what the paths are relative to.
        paths: paths as bytes in one array: a list of a million strings is copied page by page into every loader worker.
        targets: the class of each.
        labels: class names.
    """

    root: Path
    paths: np.ndarray
    targets: np.ndarray
    labels: list[str]

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, index: int) -> str:
        """Path of a picture relative to the root."""
        return os.fsdecode(self.paths[index])

    def read(self, index: int) -> tuple[Image.Image, int]:
        """A picture, decoded to the end, and its class."""
        return read_picture(self.root / self.name(index)), self.target(index)

    def target(self, index: int) -> int:
        """The class of a picture."""
        return int(self.targets[index])

    def stored(self, index: int) -> bytes:
        """The picture's file as it is."""
        return (self.root / self.name(index)).read_bytes()


def _open_folder(root: Path, split: str) -> FolderSource:
    names = ["train"] if split == "train" else ["val", "validation", "test"]
    train = root / "train"
    folder = next((root / name for name in names if (root / name).is_dir()), root / names[0])
    labels = _entries(train, folders=True)
    if not labels:
        raise _no_pictures(train)
    alike = alike_but_for_capitals(labels)
    if alike and split == "train":
        logger.warning("these classes of %s differ in capital letters alone: %s", folder, _shorten(alike))
    unknown = sorted(set(_entries(folder, folders=True)) - set(labels))
    if unknown:
        raise ValueError(f"{folder} has classes that {train} lacks: {_shorten(unknown)}; there: {_shorten(labels)}")
    found = [sorted(pictures_in(folder / label, root)) for label in labels]
    if not any(found):
        raise _no_pictures(folder)
    empty = [label for label, files in zip(labels, found, strict=True) if not files]
    if empty:
        logger.warning(
            "no pictures in %s of these classes, %d of %d: %s", folder, len(empty), len(labels), _shorten(empty)
        )
    paths = np.array([os.fsencode(file) for files in found for file in files])
    return FolderSource(root, paths, np.repeat(np.arange(len(labels)), [len(files) for files in found]), labels)


def alike_but_for_capitals(labels: Sequence[str]) -> list[str]:
    """Class names of which another differs in capital letters alone.

    Example:
        >>> alike_but_for_capitals(["Cat", "cat", "dog"])
        ['Cat', 'cat']
    """
    counts = Counter(label.casefold() for label in labels)
    return [label for label in labels if counts[label.casefold()] > 1]


def _no_pictures(folder: Path) -> ValueError:
    there = folder if folder.is_dir() else folder.parent
    return ValueError(
        f"no pictures in {folder}: expected {folder}/CLASS/* with one of the endings {' '.join(ENDINGS)}; "
        f"found {_shorten(_entries(there))} in {there}"
    )


def _entries(folder: Path, folders: bool = False) -> list[str]:
    # What begins with a dot was left there by a file browser or a notebook.
    if not folder.is_dir():
        return []
    return sorted(
        path.name for path in folder.iterdir() if not path.name.startswith(".") and (path.is_dir() or not folders)
    )


def _shorten(names: Sequence[str], limit: int = 10) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return (", ".join(names[:limit]) or "nothing") + more


@dataclass
class HuggingFaceSource:
    """A split of a Hugging Face dataset.

    Args:
        data: the `datasets.Dataset`.
        image_column: the column of the pictures.
        label_column: the column of their classes.
        targets: the class of each value in that column.
        labels: class names.
        split: what the pictures' names begin with.
    """

    data: Any
    image_column: str
    label_column: str
    targets: dict[Any, int]
    labels: list[str]
    split: str

    def __len__(self) -> int:
        return len(self.data)

    def name(self, index: int) -> str:
        """Split and number of a picture."""
        return f"{self.split}/{index}"

    def read(self, index: int) -> tuple[Image.Image, int]:
        """A picture, decoded to the end, and its class."""
        with strict_decoding():
            row = self.data[index]
        picture = row[self.image_column]
        if picture is None:
            raise ValueError(f"{self.name(index)} has no picture in column {self.image_column!r}")
        picture.load()
        return upright(picture), self.targets[row[self.label_column]]

    def target(self, index: int) -> int:
        """The class of a picture."""
        return int(self._targets[index])

    @cached_property
    def _targets(self) -> np.ndarray:
        """The class of every picture: to ask the dataset for one at a time takes minutes."""
        column = self.data.select_columns([self.label_column])[:][self.label_column]
        return np.array([self.targets[value] for value in column], int)

    def stored(self, index: int) -> bytes | None:
        """The picture's file as the dataset holds it, or names it."""
        datasets = import_extra("datasets", "hub")
        data = self.data.select_columns([self.image_column])
        found = data.cast_column(self.image_column, datasets.Image(decode=False))[index][self.image_column]
        if found is None:
            raise ValueError(f"{self.name(index)} has no picture in column {self.image_column!r}")
        return found["bytes"] if found["bytes"] is not None else Path(found["path"]).read_bytes()


def _open_huggingface(name: str, split: str, image_column: str, label_column: str) -> HuggingFaceSource:
    datasets = import_extra("datasets", "hub")
    folder = Path(name).expanduser()
    saved = any((folder / marker).is_file() for marker in ("dataset_dict.json", "state.json"))
    splits = datasets.load_from_disk(str(folder)) if saved else datasets.load_dataset(name)
    if isinstance(splits, datasets.Dataset):
        splits = {str(splits.split or "train"): splits}
    wanted = ["train"] if split == "train" else ["validation", "val", "test"]
    found = next((candidate for candidate in wanted if candidate in splits), None)
    if found is None:
        raise ValueError(f"no split {' or '.join(map(repr, wanted))} in {name!r}; there: {', '.join(splits)}")
    data = splits[found].with_format(None)
    if not len(data):
        raise ValueError(f"no pictures in split {found!r} of {name!r}")
    legal_types = (datasets.Image,), (datasets.ClassLabel, datasets.Value)
    for column, types in zip((image_column, label_column), legal_types, strict=True):
        if not isinstance(data.features.get(column), types):
            columns = ", ".join(f"{known!r} ({type(feature).__name__})" for known, feature in data.features.items())
            legal = " or ".join(kind.__name__ for kind in types)
            raise ValueError(f"no column {column!r} of type {legal} in {name!r}; there: {columns}")
    feature = data.features[label_column]
    if isinstance(feature, datasets.ClassLabel):
        labels, values = list(feature.names), list(range(feature.num_classes))
    else:
        # Of the training split, so that both splits count the same classes.
        values = sorted(value for value in splits.get("train", data).unique(label_column) if value is not None)
        labels = [str(value) for value in values]
    unknown = [value for value in data.unique(label_column) if value not in values]  # test splits often have -1
    if unknown:
        raise ValueError(f"unknown labels in split {found!r} of {name!r}: {unknown[:10]}; legal: {_shorten(labels)}")
    data = data.select_columns([image_column, label_column]).cast_column(image_column, datasets.Image())
    return HuggingFaceSource(data, image_column, label_column, {v: i for i, v in enumerate(values)}, labels, split)
