"""Labelled pictures into batches: where they come from, and how training pictures are varied and mixed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from PIL import Image
from torch import Tensor

from castling.tasks.held_out import check_share
from castling.tasks.picture_sources import LabelledSource, SourceName, open_source
from castling.tasks.preparation import ManySizesConfig, VariationConfig


@dataclass(frozen=True)
class DataConfig(ManySizesConfig):
    """Where pictures come from; what the network sees of them is that of every task.

    Args:
        source: `digits` (embedded), `folder` (ImageNet's layout), `shards` (tar archives: WebDataset's, or
            ImageNet's own), `idx` (MNIST, Fashion-MNIST), `cifar` or `huggingface`.
        root: folder of the files.
        name: name of a Hugging Face dataset, or a folder that one was saved to.
        image_column: the column of pictures in a Hugging Face dataset.
        label_column: the column of classes in a Hugging Face dataset.
        held_out: share of the training pictures, of every class alike, that are the validation split instead of the
            data's own, which is then not opened; 0 for the data's own.

    Raises:
        ValueError: as for `ManySizesConfig`, or for a share outside [0, 1).
    """

    source: SourceName = "digits"
    root: str | None = None
    name: str | None = None
    image_column: str = "image"
    label_column: str = "label"
    held_out: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share(self.held_out)


@dataclass(frozen=True)
class AugmentConfig(VariationConfig):
    """How training pictures are varied and mixed; the defaults are DeiT's.

    Args:
        mixup: alpha of mixup; 0 for none.
        cutmix: alpha of cutmix; 0 for none.
        repeats: copies of each picture in an epoch that keeps its length (repeated augmentation).

    Raises:
        ValueError: for fewer than one repeat or negative strengths.
    """

    mixup: float = 0.8
    cutmix: float = 1.0
    repeats: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.repeats < 1:
            raise ValueError(f"repeats must be at least 1; got {self.repeats}")
        if min(self.mixup, self.cutmix) < 0:
            raise ValueError(f"mixup and cutmix must be at least 0; got {self.mixup} and {self.cutmix}")


@dataclass(frozen=True)
class Labelled:
    """Makes an example of a picture and its class; an object, as loader workers must get it.

    Args:
        transform: what the picture goes through.
    """

    transform: Callable[[Image.Image], Tensor]

    def __call__(self, picture: Image.Image, label: int) -> dict[str, Any]:
        """`image` (C, H, W) and `target`."""
        return {"image": self.transform(picture), "target": label}


def make_source(data: DataConfig, split: str) -> LabelledSource:
    """The pictures of a split.

    Raises:
        ValueError: if they are of one class only.
    """
    source = open_source(
        data.source,
        split,
        data.root,
        name=data.name,
        image_column=data.image_column,
        label_column=data.label_column,
    )
    if len(source.labels) < 2:
        raise ValueError(f"a classifier needs two classes or more; there is one only: {', '.join(source.labels)}")
    return source
