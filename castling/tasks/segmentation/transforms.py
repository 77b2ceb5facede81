"""Pictures and masks into examples and batches: scaled, cut, mirrored and coloured in training; at full size otherwise.

Pictures stay as PIL has them, in 8 bits, until they are normalised. Scaling and cutting are one step of PIL, which
resizes any part of a picture: enlarging all of a picture to keep a small part of it would take several times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as nnf
from PIL import Image
from torch import Tensor
from torch.utils.data import default_collate
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F

from castling.tasks.pictures import Example
from castling.tasks.segmentation.classes import IGNORED
from castling.tasks.segmentation.data import STRIDE, SegmentationData
from castling.tasks.stacking import stacked
from castling.tasks.task import Batch

ATTEMPTS = 10  # crops drawn until none of its classes has too large a share
RESAMPLING = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}


@dataclass(frozen=True)
class MaskVariationConfig:
    """How training pictures with masks are varied.

    Args:
        scale: the smallest and the largest factor that a picture is resized by, beside what its data section says.
        cat_max: the largest share that one class should have of a crop; others are drawn for up to ten times.
        flip: probability of mirroring.
        color: probability of each change of brightness, contrast, saturation and hue.

    Raises:
        ValueError: for factors that are not in order or not above 0, or a share or probability outside [0, 1].
    """

    scale: tuple[float, float] = (0.5, 2.0)
    cat_max: float = 0.75
    flip: float = 0.5
    color: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.scale[0] <= self.scale[1]:
            raise ValueError(f"scale must be two factors above 0 in order; got {self.scale}")
        for name in ("cat_max", "flip", "color"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie from 0 to 1; got {getattr(self, name)}")


class Part(NamedTuple):
    """A part of a picture, at another size.

    Args:
        box: left, top, right and bottom in the picture.
        size: width and height that it is resized to.
    """

    box: tuple[float, float, float, float]
    size: tuple[int, int]


def input_size(size: tuple[int, int], data: SegmentationData) -> tuple[int, int]:
    """Width and height that the network sees of a picture of this width and height, before padding.

    Example:
        >>> input_size((640, 480), SegmentationData(short_side=240))
        (320, 240)
        >>> input_size((640, 480), SegmentationData(short_side=240, max_side=160))
        (160, 120)
    """
    scale = 1.0 if data.short_side is None else data.short_side / min(size)
    if data.max_side is not None:
        scale = min(scale, data.max_side / max(size))
    width, height = (max(1, round(side * scale)) for side in size)
    return width, height


def draw_part(size: tuple[int, int], full: tuple[int, int], side: int) -> Part:
    """A random part of a picture that is resized and cut to a square, or less where there is less.

    Args:
        size: width and height of the picture.
        full: width and height that all of it would be resized to.
        side: the side of the square.
    """
    sides = [min(side, length) for length in full]
    starts = [np.random.randint(length - kept + 1) for length, kept in zip(full, sides, strict=True)]
    scales = [length / resized for length, resized in zip(size, full, strict=True)]
    left, top = (start * scale for start, scale in zip(starts, scales, strict=True))
    right, bottom = (
        min((start + kept) * scale, length)
        for start, kept, scale, length in zip(starts, sides, scales, size, strict=True)
    )
    return Part((left, top, right, bottom), (sides[0], sides[1]))


def largest_share(labels: np.ndarray) -> float:
    """The share of the most frequent class among the pixels that have one; 1 where none has.

    Example:
        >>> largest_share(np.array([0, 0, 0, 2, 255]))
        0.75
    """
    counts = np.bincount(labels.ravel(), minlength=IGNORED + 1)[:IGNORED]
    return float(counts.max() / counts.sum()) if counts.sum() else 1.0


class TrainingTransform:
    """Makes a varied example of a picture and its labels; an object, as loader workers must get it.

    Args:
        data: what the network sees.
        vary: how pictures are varied.
    """

    def __init__(self, data: SegmentationData, vary: MaskVariationConfig) -> None:
        jitters = ({"brightness": 0.5}, {"contrast": 0.5}, {"saturation": 0.5}, {"hue": 0.05})
        self.colors = v2.RandomOrder([v2.RandomApply([v2.ColorJitter(**jitter)], vary.color) for jitter in jitters])
        self.data, self.vary, self.normalise = data, vary, _normalise(data)

    def __call__(self, picture: Image.Image, labels: np.ndarray) -> Example:
        """`image` (3, S, S) and `labels` (S, S), uint8; what is missing is zero, and ignored."""
        side, mask = self.data.image_size, Image.fromarray(labels)
        factor = np.random.uniform(*self.vary.scale)
        width, height = (max(1, round(length * factor)) for length in input_size(picture.size, self.data))
        for _ in range(ATTEMPTS):
            part = draw_part(picture.size, (width, height), side)
            seen = np.array(mask.resize(part.size, Image.Resampling.NEAREST, part.box))
            if largest_share(seen) <= self.vary.cat_max or part.size == (width, height):
                break  # good, or the only one that there is
        picture = picture.resize(part.size, RESAMPLING[self.data.interpolation], part.box)
        if np.random.uniform() < self.vary.flip:
            picture, seen = F.horizontal_flip(picture), seen[:, ::-1].copy()
        image = self.normalise(self.colors(picture))
        return {"image": pad(image, (side, side)), "labels": pad(torch.from_numpy(seen), (side, side), IGNORED)}


class EvaluationTransform:
    """Makes an example of a picture and its labels as they are; an object, as loader workers must get it.

    Args:
        data: what the network sees.
    """

    def __init__(self, data: SegmentationData) -> None:
        self.data, self.normalise = data, _normalise(data)

    def __call__(self, picture: Image.Image, labels: np.ndarray) -> Example:
        """`image` (3, rows, columns) as the network sees it; `labels` (h, w), uint8, at the picture's own `size`."""
        image = self.normalise(_resized(picture, self.data))
        return {"image": image, "labels": torch.from_numpy(labels), "size": torch.tensor(labels.shape)}


class Preparation:
    """Makes the network's input of a picture without labels; an object, as other processes must get it.

    Args:
        data: what the network sees.
    """

    def __init__(self, data: SegmentationData) -> None:
        self.data, self.normalise = data, _normalise(data)

    def __call__(self, picture: Image.Image) -> Tensor:
        """`(3, H, W)`, padded at the right and at the bottom to multiples of 32."""
        image = self.normalise(_resized(picture, self.data))
        return pad(image, padded_size(image.shape[-2:]))


def prepare(data: SegmentationData) -> Preparation:
    """What a picture without labels goes through to become the network's input `(3, H, W)`."""
    return Preparation(data)


def collate(examples: Sequence[Example]) -> Batch:
    """Examples as a batch: pictures are padded with zeros to multiples of 32 and the largest, labels with 255.

    Images are channels-last: convolutions follow their input, and train a third faster so on a CPU.

    Returns:
        `image` (B, 3, H, W) and `labels` (B, h, w), long; in evaluation `seen` (B, 2), rows and columns of `image` that
        are picture, and `size` (B, 2), those of `labels`; the rest is stacked.

    Example:
        >>> transform = EvaluationTransform(SegmentationData(short_side=40))
        >>> pictures = [Image.new("RGB", (80, 90)), Image.new("RGB", (50, 60))]
        >>> labels = [np.zeros((90, 80), np.uint8), np.zeros((60, 50), np.uint8)]
        >>> batch = collate([transform(*pair) for pair in zip(pictures, labels)])
        >>> batch["image"].shape, batch["seen"].tolist(), batch["labels"].shape, batch["size"].tolist()
        (torch.Size([2, 3, 64, 64]), [[45, 40], [48, 40]], torch.Size([2, 90, 80]), [[90, 80], [60, 50]])
    """
    images, labels = ([example[name] for example in examples] for name in ("image", "labels"))
    seen, sizes = ([list(one.shape[-2:]) for one in those] for those in (images, labels))
    inside, outside = (np.max(shapes, axis=0).tolist() for shapes in (seen, sizes))
    others = [
        {name: value for name, value in example.items() if name not in ("image", "labels")} for example in examples
    ]
    batch: Batch = default_collate(others)
    if "size" in batch:
        batch["seen"] = torch.tensor(seen)
    padded = stacked([pad(image, padded_size(inside)) for image in images])
    batch["image"] = padded.contiguous(memory_format=torch.channels_last)
    batch["labels"] = torch.stack([pad(labelled, outside, IGNORED) for labelled in labels]).long()
    return batch


def pad(values: Tensor, size: Sequence[int], fill: int = 0) -> Tensor:
    """Values `(..., h, w)`, filled up at the right and at the bottom."""
    height, width = values.shape[-2:]
    if (height, width) == tuple(size):
        return values
    return nnf.pad(values, (0, size[1] - width, 0, size[0] - height), value=fill)


def padded_size(size: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of the network's input for a picture of so many.

    Example:
        >>> padded_size((360, 480))
        (384, 480)
    """
    height, width = (-(-side // STRIDE) * STRIDE for side in size)
    return height, width


def _resized(picture: Image.Image, data: SegmentationData) -> Image.Image:
    width, height = input_size(picture.size, data)
    return F.resize(picture, [height, width], InterpolationMode(data.interpolation), antialias=True)


def _normalise(data: SegmentationData) -> v2.Transform:
    return v2.Compose(
        [
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(data.mean, data.std, inplace=True),
            v2.ToPureTensor(),
        ]
    )
