"""What a network sees of a picture: size, colours, normalisation, and how training pictures are varied, by timm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from timm.data import create_transform
from torch import Tensor

from castling.config import check_choice
from castling.tasks.pictures import MODES


@dataclass(frozen=True)
class PictureConfig:
    """What the network sees of a picture. A task's own configuration of its data is built on it.

    Args:
        image_size: side of the square that the network sees.
        channels: 1 for grey, 3 for colour.
        mean: the mean of the normalisation, one number per channel.
        std: the standard deviation of the normalisation.
        crop_share: side of the centre crop in evaluation, as a share of the resized picture.
        interpolation: the interpolation of resizing.

    Raises:
        ValueError: for numbers outside their range, or means that do not match the channels.
    """

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

    def example(self) -> Tensor:
        """An empty picture `(1, C, H, W)`, for counting and probing."""
        return torch.zeros(1, self.channels, self.image_size, self.image_size)

    def preprocessing(self) -> dict[str, Any]:
        """How a picture becomes the network's input, as plain values."""
        names = ("mean", "std", "interpolation", "crop_share")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class VariationConfig:
    """How training pictures are varied; the defaults are DeiT's.

    Args:
        crop_scale: smallest and largest share of the picture that a random crop keeps; null for no crop.
        crop_ratio: narrowest and widest crop.
        flip: probability of mirroring.
        color_jitter: strength; not used with auto_augment.
        auto_augment: timm's name of a policy, such as `rand-m9-mstd0.5-inc1`; null for none.
        erasing: probability of random erasing.

    Raises:
        ValueError: for negative strengths.
    """

    crop_scale: tuple[float, float] | None = (0.08, 1.0)
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    color_jitter: float = 0.3
    auto_augment: str | None = "rand-m9-mstd0.5-inc1"
    erasing: float = 0.25

    def __post_init__(self) -> None:
        if min(self.flip, self.color_jitter, self.erasing) < 0:
            raise ValueError("flip, color_jitter and erasing must be at least 0")


def train_transform(data: PictureConfig, vary: VariationConfig) -> Callable[[Image.Image], Tensor]:
    """Timm's training transform."""
    return create_transform(
        (data.channels, data.image_size, data.image_size),
        is_training=True,
        scale=vary.crop_scale or (1.0, 1.0),
        ratio=vary.crop_ratio if vary.crop_scale else (1.0, 1.0),
        hflip=vary.flip,
        color_jitter=vary.color_jitter,
        auto_augment=vary.auto_augment,
        interpolation=data.interpolation,
        mean=data.mean,
        std=data.std,
        re_prob=vary.erasing,
        re_mode="pixel",
    )


def eval_transform(data: PictureConfig) -> Callable[[Image.Image], Tensor]:
    """Timm's evaluation transform: resize, centre crop, normalise."""
    return create_transform(
        (data.channels, data.image_size, data.image_size),
        interpolation=data.interpolation,
        mean=data.mean,
        std=data.std,
        crop_pct=data.crop_share,
    )
