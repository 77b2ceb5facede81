"""Pictures of which parts are hidden: any folder of them, or a dataset whose labels are not looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from PIL import Image
from torch import Tensor

from castling.tasks.held_out import check_share
from castling.tasks.picture_folders import folder_of, open_folder
from castling.tasks.picture_sources import SourceName, open_source
from castling.tasks.pictures import Source
from castling.tasks.preparation import PictureConfig, VariationConfig
from castling.tasks.pretraining.patches import Masked, draw_places, fixed_places
from castling.tasks.shards.opening import open_shard_pictures


@dataclass(frozen=True)
class PretrainingData(PictureConfig):
    """Where pictures come from; labels are not looked at.

    Args:
        source: `folder` (all pictures in it and below), `shards` (all of its tar archives), `digits` (embedded), `idx`
            (MNIST, Fashion-MNIST), `cifar` or `huggingface`.
        root: folder of the files. One with `train` and `val` (or `validation`, or `test`) in it has these splits, of
            another a tenth of the pictures, chosen by their names, is kept for evaluation.
        name: name of a Hugging Face dataset, or a folder that one was saved to.
        image_column: the column of pictures in a Hugging Face dataset.
        label_column: the column of classes in a Hugging Face dataset.
        held_out: share of the training pictures that are the validation split instead of the data's own, which is then
            not opened; 0 for the data's own.

    Raises:
        ValueError: as for `PictureConfig`, or for a share outside [0, 1).
    """

    source: SourceName = "folder"
    root: str | None = None
    name: str | None = None
    image_column: str = "image"
    label_column: str = "label"
    held_out: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share(self.held_out)


@dataclass(frozen=True)
class CropConfig(VariationConfig):
    """How training pictures are varied; the defaults are MAE's: crops and mirroring are enough."""

    crop_scale: tuple[float, float] | None = (0.2, 1.0)
    color_jitter: float = 0.0
    auto_augment: str | None = None
    erasing: float = 0.0


@dataclass
class Numbered:
    """Pictures of which nothing is known but their number.

    Args:
        source: the pictures.
    """

    source: Source

    def __len__(self) -> int:
        return len(self.source)

    def name(self, index: int) -> str:
        """The name in the source."""
        return self.source.name(index)

    def read(self, index: int) -> tuple[Image.Image, int]:
        """A picture, and its number."""
        return self.source.read(index)[0], index


@dataclass(frozen=True)
class PartlySeen:
    """Makes an example of a picture and its number; an object, as loader workers must get it.

    Args:
        transform: what the picture goes through.
        masked: how many patches are hidden.
        varied: whether they are drawn by torch's generator, which is seeded for each example in training; otherwise
            they are always the same for a number.
    """

    transform: Callable[[Image.Image], Tensor]
    masked: Masked
    varied: bool

    def __call__(self, picture: Image.Image, index: int) -> dict[str, Any]:
        """`image` (C, H, W) and `visible` (Nv,), the places of patches that are seen."""
        image = self.transform(picture)
        return {
            "image": image,
            "visible": draw_places(self.masked) if self.varied else fixed_places(self.masked, index),
        }


def open_pictures(data: PretrainingData, split: str) -> Numbered:
    """The pictures of a split.

    Raises:
        ValueError: names a missing argument, an unknown source, or a file that is damaged.
        FileNotFoundError: names the folder or file that is missing.
    """
    if data.source == "folder":
        return Numbered(open_folder(data.root, split))
    if data.source == "shards":
        return Numbered(open_shard_pictures(folder_of(data.root), split))
    columns = {"image_column": data.image_column, "label_column": data.label_column}
    return Numbered(open_source(data.source, split, data.root, name=data.name, **columns))
