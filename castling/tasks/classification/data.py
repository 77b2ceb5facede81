"""Pictures into batches: a source, timm's augmentation, and what happens to pictures that cannot be read.

Augmentation is seeded by epoch and example, so that a picture looks the same whoever reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from timm.data import create_transform
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from castling.config import check_choice
from castling.tasks.batches import EpochBatches, Key, seeded
from castling.tasks.classification.sources import Source, SourceName, open_source

MODES = {1: "L", 3: "RGB"}
MAX_UNREADABLE_IN_A_ROW = 100
Batch = dict[str, Any]


@dataclass(frozen=True)
class DataConfig:
    """Where pictures come from, and what the network sees of them.

    Args:
        source: `digits` (embedded), `folder` (ImageNet's layout), `idx` (MNIST, Fashion-MNIST), `cifar` or
            `huggingface`.
        root: folder of the files.
        name: of a Hugging Face dataset, or a folder that one was saved to.
        image_column: of a Hugging Face dataset.
        label_column: of a Hugging Face dataset.
        image_size: side of the square that the network sees.
        channels: 1 for grey, 3 for colour.
        mean: of the normalisation, one number per channel.
        std: of the normalisation.
        crop_share: side of the centre crop in evaluation, as a share of the resized picture.
        interpolation: of resizing.

    Raises:
        ValueError: for numbers outside their range, or means that do not match the channels.
    """

    source: SourceName = "digits"
    root: str | None = None
    name: str | None = None
    image_column: str = "image"
    label_column: str = "label"
    image_size: int = 224
    channels: int = 3
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    crop_share: float = 0.875
    interpolation: str = "bicubic"

    def __post_init__(self) -> None:
        check_choice("interpolation", self.interpolation, ("nearest", "bilinear", "bicubic", "lanczos"))
        if self.channels not in MODES:
            raise ValueError(f"channels must be one of {list(MODES)}; got {self.channels}")
        if not len(self.mean) == len(self.std) == self.channels:
            raise ValueError(f"mean and std need {self.channels} numbers each; got {self.mean} and {self.std}")
        if self.image_size < 1:
            raise ValueError(f"image_size must be at least 1; got {self.image_size}")
        if not 0 < self.crop_share <= 1:
            raise ValueError(f"crop_share must lie in (0, 1]; got {self.crop_share}")


@dataclass(frozen=True)
class AugmentConfig:
    """How training pictures are varied; the defaults are DeiT's.

    Args:
        crop_scale: smallest and largest share of the picture that a random crop keeps; null for no crop.
        crop_ratio: narrowest and widest crop.
        flip: probability of mirroring.
        color_jitter: strength; not used with auto_augment.
        auto_augment: timm's name of a policy, such as `rand-m9-mstd0.5-inc1`; null for none.
        erasing: probability of random erasing.
        mixup: alpha of mixup; 0 for none.
        cutmix: alpha of cutmix; 0 for none.
        repeats: copies of each picture in an epoch that keeps its length (repeated augmentation).

    Raises:
        ValueError: for fewer than one repeat or negative strengths.
    """

    crop_scale: tuple[float, float] | None = (0.08, 1.0)
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    color_jitter: float = 0.3
    auto_augment: str | None = "rand-m9-mstd0.5-inc1"
    erasing: float = 0.25
    mixup: float = 0.8
    cutmix: float = 1.0
    repeats: int = 1

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise ValueError(f"repeats must be at least 1; got {self.repeats}")
        if min(self.flip, self.color_jitter, self.erasing, self.mixup, self.cutmix) < 0:
            raise ValueError("flip, color_jitter, erasing, mixup and cutmix must be at least 0")


class Pictures(Dataset[dict[str, Any]]):
    """Examples of a source, as tensors.

    An unreadable picture gives way to the next one in training, and counts as none in evaluation (target -1); its name
    travels with the batch.
    """

    def __init__(
        self,
        source: Source,
        transform: Callable[[Image.Image], Tensor],
        data: DataConfig,
        seed: int | None = None,
    ) -> None:
        self.source, self.transform, self.data, self.seed = source, transform, data, seed

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, key: Key) -> dict[str, Any]:
        """The example of a key, with the names of pictures that could not be read on the way."""
        unreadable: list[tuple[str, str]] = []
        for attempt in range(min(len(self), MAX_UNREADABLE_IN_A_ROW)):
            index = (key.example + attempt) % len(self)
            try:
                image, target = self._read(index, key)
            except Exception as error:  # decoders raise whatever they like
                unreadable.append((self.source.name(index), f"{type(error).__name__}: {error}"))
                if self.seed is None:
                    image, target = torch.zeros(self.data.channels, *2 * [self.data.image_size]), -1
                    break
            else:
                break
        else:
            raise ValueError(f"{len(unreadable)} pictures in a row cannot be read, first {': '.join(unreadable[0])}")
        return {"image": image, "target": target, "index": index, "unreadable": unreadable}

    def _read(self, index: int, key: Key) -> tuple[Tensor, int]:
        picture, target = self.source.read(index)
        picture = in_channels(picture, self.data.channels)
        if self.seed is None:
            return self.transform(picture), target
        with seeded(self.seed, key.epoch, key.example, key.repeat):
            return self.transform(picture), target


def in_channels(picture: Image.Image, channels: int) -> Image.Image:
    """A picture as grey (1) or colour (3) of 8 bits; 16-bit ones, which PIL would cut off at 255, are scaled."""
    if picture.mode.startswith("I"):
        picture = Image.fromarray((np.asarray(picture).clip(0, 65535) / 257).round().astype(np.uint8))
    return picture.convert(MODES[channels])


def collate(examples: Sequence[dict[str, Any]]) -> Batch:
    """A batch: `image` (B, C, H, W), `target` (B,), `index` (B,), and `unreadable` names with their errors."""
    return {
        "image": torch.stack([example["image"] for example in examples]),
        "target": torch.tensor([example["target"] for example in examples]),
        "index": torch.tensor([example["index"] for example in examples]),
        "unreadable": [pair for example in examples for pair in example["unreadable"]],
    }


def make_source(data: DataConfig, split: str) -> Source:
    """The pictures of a split."""
    return open_source(
        data.source,
        split,
        data.root,
        name=data.name,
        image_column=data.image_column,
        label_column=data.label_column,
    )


def train_transform(data: DataConfig, augment: AugmentConfig) -> Callable[[Image.Image], Tensor]:
    """Timm's training transform."""
    return create_transform(
        (data.channels, data.image_size, data.image_size),
        is_training=True,
        scale=augment.crop_scale or (1.0, 1.0),
        ratio=augment.crop_ratio if augment.crop_scale else (1.0, 1.0),
        hflip=augment.flip,
        color_jitter=augment.color_jitter,
        auto_augment=augment.auto_augment,
        interpolation=data.interpolation,
        mean=data.mean,
        std=data.std,
        re_prob=augment.erasing,
        re_mode="pixel",
    )


def eval_transform(data: DataConfig) -> Callable[[Image.Image], Tensor]:
    """Timm's evaluation transform: resize, centre crop, normalise."""
    return create_transform(
        (data.channels, data.image_size, data.image_size),
        interpolation=data.interpolation,
        mean=data.mean,
        std=data.std,
        crop_pct=data.crop_share,
    )


def make_loader(dataset: Pictures, batches: EpochBatches, workers: int) -> DataLoader[Batch]:
    """A loader that yields what `batches` says, from wherever it was told to begin."""
    return DataLoader(
        dataset,
        batch_sampler=batches,
        num_workers=workers,
        collate_fn=collate,
        persistent_workers=workers > 0,
        pin_memory=torch.cuda.is_available(),
        worker_init_fn=_one_thread,
    )


def _one_thread(worker: int) -> None:
    torch.set_num_threads(1)
