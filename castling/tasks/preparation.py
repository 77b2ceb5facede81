"""What a network sees of a picture: size, colours, normalisation, and how training pictures are varied, by timm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, cast

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from timm.data import create_transform
from timm.data.auto_augment import posterize
from torch import Tensor
from torchvision.transforms import Compose, Normalize

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
        if not min(self.std) > 0:
            raise ValueError(f"std must be above 0; got {self.std}")
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
class ManySizesConfig(PictureConfig):
    """The same, of a task whose training may show pictures at several sizes.

    Args:
        sizes: sides that training batches are resized to, one of them in each step; none for `image_size` alone, which
            is that of evaluation.

    Raises:
        ValueError: as for `PictureConfig`, or for a side below 1.
    """

    sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.sizes, default=1) < 1:
            raise ValueError(f"sizes must be at least 1; got {self.sizes}")

    def at_largest(self) -> Self:
        """As training pictures are read, before they are resized."""
        return replace(self, image_size=max(self.sizes, default=self.image_size))


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
        ValueError: for numbers outside their range, or a policy that timm does not know.
    """

    crop_scale: tuple[float, float] | None = (0.08, 1.0)
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    color_jitter: float = 0.3
    auto_augment: str | None = "rand-m9-mstd0.5-inc1"
    erasing: float = 0.25

    def __post_init__(self) -> None:
        for name in ("flip", "erasing"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is a probability from 0 to 1; got {getattr(self, name)}")
        if self.color_jitter < 0:
            raise ValueError(f"color_jitter must be at least 0; got {self.color_jitter}")
        if self.crop_scale is not None and not 0 < self.crop_scale[0] <= self.crop_scale[1] <= 1:
            raise ValueError(f"crop_scale must rise within (0, 1], such as [0.08, 1]; got {self.crop_scale}")
        if not 0 < self.crop_ratio[0] <= self.crop_ratio[1]:
            raise ValueError(f"crop_ratio must rise from above 0, such as [0.75, 1.33]; got {self.crop_ratio}")
        try:
            create_transform(32, is_training=True, auto_augment=self.auto_augment)
        except Exception as error:  # timm checks names by assertions and by looking them up
            raise ValueError(
                "auto_augment must be a policy of timm's, such as 'rand-m9-mstd0.5-inc1', 'augmix-m5' or 'original'; "
                f"got {self.auto_augment!r}"
            ) from error


def at_one_of(images: Tensor, sides: Sequence[int], step: int) -> Tensor:
    """Square pictures at one of the sides, which the step of training decides; as they are where there are none.

    Example:
        >>> [at_one_of(torch.zeros(1, 3, 8, 8), (4, 6), step).shape[-1] for step in range(4)]
        [6, 4, 6, 6]
    """
    side = int(np.random.default_rng(step).choice(sides or images.shape[-1:]))
    if side == images.shape[-1]:
        return images
    return F.interpolate(images, (side, side), mode="bilinear", antialias=True)


def train_transform(data: PictureConfig, vary: VariationConfig) -> Callable[[Image.Image], Tensor]:
    """Timm's training transform."""
    transform = create_transform(
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
    for part in transform.transforms:
        policy = (step for steps in getattr(part, "policy", ()) for step in steps)
        for step in getattr(part, "ops", policy):
            if step.aug_fn is posterize:
                step.aug_fn = posterize_to_black
    return _normalising_at_once(transform)


def posterize_to_black(picture: Image.Image, bits: int, **options: Any) -> Image.Image:
    """Keep some bits of every shade, none of them too: Pillow 13 refuses what the strongest steps of policies ask for.

    Example:
        >>> posterize_to_black(Image.new("L", (1, 1), 255), 0).getpixel((0, 0))
        0
    """
    return posterize(picture, bits, **options) if bits > 0 else Image.new(picture.mode, picture.size)


def eval_transform(data: PictureConfig) -> Callable[[Image.Image], Tensor]:
    """Timm's evaluation transform: resize, centre crop, normalise."""
    transform = create_transform(
        (data.channels, data.image_size, data.image_size),
        interpolation=data.interpolation,
        mean=data.mean,
        std=data.std,
        crop_pct=data.crop_share,
    )
    return _normalising_at_once(transform)


class Bytes:
    """A picture of 8 bits as a tensor of its bytes; an object, as loader workers must get it.

    Example:
        >>> Bytes()(Image.new("L", (2, 1), 255))
        tensor([[[255, 255]]], dtype=torch.uint8)
    """

    def __call__(self, picture: Image.Image) -> Tensor:
        """`(C, H, W)`."""
        by_line = "RGB;L" if picture.mode == "RGB" else picture.mode  # all reds of a line, then greens: read in a row
        lines = np.frombuffer(picture.tobytes("raw", by_line), np.uint8).reshape(picture.height, -1, picture.width)
        return torch.from_numpy(lines.transpose(1, 0, 2).copy())


class Normalise:
    """Bytes of pictures as normalised floats; an object, as loader workers must get it.

    The same numbers to the last bit as torchvision's two steps, which make four copies on the way.

    Args:
        mean: the mean of each channel, from 0 to 1.
        std: the standard deviation of each channel.

    Example:
        >>> Normalise(torch.tensor([0.5]), torch.tensor([0.25]))(torch.tensor([[[255, 0]]], dtype=torch.uint8))
        tensor([[[ 2., -2.]]])
    """

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        self.mean, self.std = mean[:, None, None], std[:, None, None]

    def __call__(self, pictures: Tensor) -> Tensor:
        """One picture `(C, H, W)` or several; floats stay as they are, as they were normalised before."""
        if pictures.is_floating_point():
            return pictures
        found = torch.empty(pictures.shape)
        one = (-1, *pictures.shape[-3:])
        for picture, pixels in zip(found.view(one), pictures.view(one), strict=True):
            picture.copy_(pixels).div_(255).sub_(self.mean).div_(self.std)  # one at a time stays in the cache
        return found


def in_two_steps(transform: Callable[[Image.Image], Tensor]) -> tuple[Callable[[Image.Image], Tensor], Normalise]:
    """A transform from above as what reading processes do and what is left for whole batches.

    Bytes are a quarter of what floats are to send to the training process. Where something comes after normalising,
    as random erasing does, all of it is done at once.

    Example:
        >>> to_bytes, normalise = in_two_steps(eval_transform(PictureConfig(image_size=2)))
        >>> to_bytes(Image.new("RGB", (4, 4))).dtype, normalise(to_bytes(Image.new("RGB", (4, 4)))).dtype
        (torch.uint8, torch.float32)
    """
    steps = list(cast(Compose, transform).transforms)
    normalise = next(step for step in steps if isinstance(step, Normalise))
    return (Compose(steps[:-1]) if steps[-1] is normalise else transform), normalise


def _normalising_at_once(transform: Any) -> Callable[[Image.Image], Tensor]:
    """Timm's transform with our steps from a picture to a normalised tensor."""
    steps = list(transform.transforms)
    place = next(number for number, step in enumerate(steps) if isinstance(step, Normalize))
    steps[place - 1 : place + 1] = [Bytes(), Normalise(steps[place].mean, steps[place].std)]
    return Compose(steps)
