"""Pictures without labels: all files of a folder and those below it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from castling.tasks.held_out import is_held_out
from castling.tasks.pictures import pictures_in, read_picture

HELD_OUT_FOLDERS = ("val", "validation", "test")


@dataclass
class FolderPictures:
    """Pictures in files.

    Args:
        root: what the paths are relative to.
        paths: paths as bytes in one array: a list of a million strings is copied page by page into every loader worker.
    """

    root: Path
    paths: np.ndarray

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, index: int) -> str:
        """Path of a picture relative to the root."""
        return os.fsdecode(self.paths[index])

    def read(self, index: int) -> tuple[Image.Image, None]:
        """A picture, decoded to the end, of which nothing is known."""
        return read_picture(self.root / self.name(index)), None


def open_folder(root: str | None, split: str) -> FolderPictures:
    """The pictures of a split.

    Where the folder has `train` in it and `val`, or else `validation` or `test`, these are the splits; otherwise a
    tenth of its pictures, chosen by their names, is kept for evaluation.

    Args:
        root: the folder.
        split: `train` or `val`.

    Raises:
        ValueError: without a folder, or if there are no pictures in it.
        FileNotFoundError: names the folder that is missing.
    """
    folder = folder_of(root)
    held_out = next((name for name in HELD_OUT_FOLDERS if (folder / name).is_dir()), None)
    if (folder / "train").is_dir() and held_out is not None:
        names = sorted(pictures_in(folder / ("train" if split == "train" else held_out), folder))
    else:
        names = [name for name in sorted(pictures_in(folder, folder)) if is_held_out(name) == (split == "val")]
    if not names:
        raise ValueError(f"no pictures for {split} in {folder}")
    return FolderPictures(folder, np.array([os.fsencode(name.removeprefix("./")) for name in names]))


def folder_of(root: str | None) -> Path:
    """The folder that a recipe names.

    Raises:
        ValueError: without a name.
        FileNotFoundError: names the folder that is missing.
    """
    if root is None:
        raise ValueError("data.root: name the folder that the pictures are in")
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder}")
    return folder
