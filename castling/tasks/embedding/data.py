"""Pictures without labels: all files of a folder and those below it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from castling.tasks.pictures import is_held_out, pictures_in, read_picture
from castling.tasks.preparation import PictureConfig, VariationConfig


@dataclass(frozen=True)
class FolderConfig(PictureConfig):
    """A folder of pictures, in any order and depth.

    Args:
        root: the folder. Where it has `train` and `val` in it, these are the splits; otherwise a tenth of its pictures,
            chosen by their names, is kept for evaluation.

    Raises:
        ValueError: as for `PictureConfig`.
    """

    root: str | None = None


@dataclass(frozen=True)
class GentleConfig(VariationConfig):
    """How training pictures are varied where nothing but a network's own answers is learned: crops and mirroring."""

    crop_scale: tuple[float, float] | None = (0.35, 1.0)
    color_jitter: float = 0.0
    auto_augment: str | None = None
    erasing: float = 0.0


@dataclass
class FolderPictures:
    """Pictures in files.

    Args:
        root: what the paths are relative to.
        paths: as bytes in one array: a list of a million strings is copied page by page into every loader worker.
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


@dataclass(frozen=True)
class ImageOnly:
    """Makes an example of a picture; an object, as loader workers must get it.

    Args:
        transform: what the picture goes through.
    """

    transform: Callable[[Image.Image], Tensor]

    def __call__(self, picture: Image.Image, known: None) -> dict[str, Any]:
        """`image` (C, H, W)."""
        return {"image": self.transform(picture)}


def open_folder(root: str | None, split: str) -> FolderPictures:
    """The pictures of a split.

    Raises:
        ValueError: without a folder, or if there are no pictures in it.
        FileNotFoundError: names the folder that is missing.
    """
    if root is None:
        raise ValueError("data.root: name the folder that the pictures are in")
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder}")
    if (folder / "train").is_dir() and (folder / "val").is_dir():
        names = sorted(pictures_in(folder / split, folder))
    else:
        names = [name for name in sorted(pictures_in(folder, folder)) if is_held_out(name) == (split == "val")]
    if not names:
        raise ValueError(f"no pictures for {split} in {folder}")
    return FolderPictures(folder, np.array([os.fsencode(name.removeprefix("./")) for name in names]))
