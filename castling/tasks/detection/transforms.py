"""Pictures and boxes into examples and batches: varied as PicoDet's training pictures, resized, normalised.

Pictures stay as PIL has them, in 8 bits, until they are normalised: its colours are twice as fast as those of tensors.
Flip, resizing and colours are torchvision's; the crop is PicoDet's own. `RandomIoUCrop` draws both sides apart, may
draw the same threshold again and again, compares only boxes in the crop, and takes 15 times as long.
`RandomPhotometricDistort` swaps channels, and keeps brightness first and hue behind saturation: here the four come in
any order. PicoDet's contrast multiplies, as brightness does here; its brightness adds a grey level or so, and its hue
turns by any angle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.ops import box_iou
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F
from torchvision.tv_tensors import BoundingBoxes

from castling.tasks.detection.annotations import Objects
from castling.tasks.detection.data import DetectionData
from castling.tasks.pictures import Example
from castling.tasks.stacking import collated
from castling.tasks.task import Batch

THRESHOLDS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)  # the overlap that one box at least has with a crop
ATTEMPTS = 50  # crops drawn for each of them
SCALES = (0.3, 1.0)  # square root of the share of the picture's area
RATIOS = (0.5, 2.0)  # of a crop's width to its height, where the picture counts as a square
LEAST_SIDE = 1.0  # pixels; what a crop leaves of a box below that is no box
PADDING = -1  # the label of boxes that fill up a batch


@dataclass(frozen=True)
class BoxVariationConfig:
    """How training pictures with boxes are varied; the defaults are PicoDet's.

    Args:
        crop: probability of a random crop, which keeps the whole picture now and then.
        flip: probability of mirroring.
        color: probability of each change of brightness, contrast, saturation and hue.

    Raises:
        ValueError: for a probability outside [0, 1].
    """

    crop: float = 1.0
    flip: float = 0.5
    color: float = 0.5

    def __post_init__(self) -> None:
        for name in ("crop", "flip", "color"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is a probability from 0 to 1; got {getattr(self, name)}")


class Crop(NamedTuple):
    """A part of a picture.

    Args:
        left: first column.
        top: first row.
        right: the column behind the last.
        bottom: the row below the last.
        kept: bool `(M,)`: the boxes whose centre is inside.
    """

    left: int
    top: int
    right: int
    bottom: int
    kept: Tensor


def draw_crop(boxes: Tensor, width: int, height: int) -> Crop | None:
    """A random crop that overlaps some box, as PicoDet draws it; None for the whole picture.

    Args:
        boxes: `(M, 4)`.
        width: columns of the picture.
        height: rows of the picture.
    """
    if not len(boxes):
        return None
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    for choice in np.random.permutation(len(THRESHOLDS) + 1):
        if choice == len(THRESHOLDS):
            return None
        # All attempts at once: one by one they would take longer than decoding the picture.
        scale = np.random.uniform(*SCALES, ATTEMPTS)
        ratio = np.random.uniform(np.maximum(RATIOS[0], scale**2), np.minimum(RATIOS[1], scale**-2))
        sides = np.stack([width * scale * np.sqrt(ratio), height * scale / np.sqrt(ratio)], 1).astype(np.int64)
        sides = np.maximum(sides, 1)
        starts = (np.random.uniform(size=(ATTEMPTS, 2)) * (np.array([width, height]) - sides + 1)).astype(np.int64)
        crops = torch.from_numpy(np.concatenate([starts, starts + sides], 1)).float()  # (A, 4)
        kept = ((crops[:, None, :2] < centres) & (centres < crops[:, None, 2:])).all(2)  # (A, M)
        good = (box_iou(crops, boxes).amax(1) >= THRESHOLDS[choice]) & kept.any(1)
        if good.any():
            first = int(good.int().argmax())
            left, top, right, bottom = crops[first].int().tolist()
            return Crop(left, top, right, bottom, kept[first])
    return None


class TrainingTransform:
    """Makes a varied example of a picture and its boxes; an object, as loader workers must get it.

    Args:
        data: what the network sees.
        vary: how pictures are varied.
    """

    def __init__(self, data: DetectionData, vary: BoxVariationConfig) -> None:
        jitters = ({"brightness": 0.5}, {"contrast": 0.5}, {"saturation": 0.5}, {"hue": 0.05})
        colors = v2.RandomOrder([v2.RandomApply([v2.ColorJitter(**jitter)], vary.color) for jitter in jitters])
        self.crop = vary.crop
        # Colours come last: by then the picture is small.
        self.vary = v2.Compose([v2.RandomHorizontalFlip(vary.flip), _resize(data), colors])
        self.normalise = _normalise(data)

    def __call__(self, picture: Image.Image, objects: Objects) -> Example:
        """An example as `EvaluationTransform` makes it; boxes around groups are not in it."""
        size = picture.size
        objects = Objects(*(part[~objects.crowd] for part in objects))
        if np.random.uniform() < self.crop:
            picture, objects = _cropped(picture, objects)
        image, boxes = self.vary(picture, _boxes(objects.boxes, picture))
        return _example(self.normalise(image), objects._replace(boxes=boxes), size)


class EvaluationTransform:
    """Makes an example of a picture and its boxes as they are; an object, as loader workers must get it.

    Args:
        data: what the network sees.
    """

    def __init__(self, data: DetectionData) -> None:
        self.resize, self.normalise = _resize(data), _normalise(data)

    def __call__(self, picture: Image.Image, objects: Objects) -> Example:
        """`image` (3, H, W); `boxes` (M, 4) in its pixels; `labels` and `crowd` (M,); `size` (2,), height and width.

        `written` is an array (M, 5), the truth of metrics: boxes and areas as they were.
        """
        image, boxes = self.resize(picture, _boxes(objects.boxes, picture))
        example = _example(self.normalise(image), objects._replace(boxes=boxes), picture.size)
        return {**example, "written": objects.written.numpy()}


def prepare(data: DetectionData) -> v2.Transform:
    """What a picture without boxes goes through to become the network's input `(3, H, W)`."""
    return v2.Compose([_resize(data), _normalise(data), v2.ToPureTensor()])


def collate(examples: Sequence[Example]) -> Batch:
    """Examples as a batch: boxes are padded to the most that one of them has, with label -1; the rest is stacked.

    What was `written` of them is a list of arrays, which stays where it is: not every device has float64.

    Images are channels-last: convolutions follow their input, and train a third faster so on a CPU.

    Example:
        >>> two = Objects(torch.ones(2, 4), torch.tensor([0, 1]), torch.tensor([False, True]), torch.ones(2, 5))
        >>> none = Objects(*(part[:0] for part in two))
        >>> transform = EvaluationTransform(DetectionData(image_size=32))
        >>> batch = collate([transform(Image.new("RGB", (8, 6)), some) for some in (two, none)])
        >>> batch["image"].shape, batch["boxes"].shape, batch["labels"].tolist()
        (torch.Size([2, 3, 32, 32]), torch.Size([2, 2, 4]), [[0, 1], [-1, -1]])
    """
    most = max(len(example["labels"]) for example in examples)
    fills: dict[str, Any] = {"boxes": 0, "labels": PADDING, "crowd": False}
    batch: Batch = collated(
        [
            {
                name: _padded(value, most, fills[name]) if name in fills else value
                for name, value in example.items()
                if name != "written"
            }
            for example in examples
        ]
    )
    if "written" in examples[0]:
        batch["written"] = [example["written"] for example in examples]
    return {**batch, "image": batch["image"].contiguous(memory_format=torch.channels_last)}


def _padded(values: Tensor, length: int, fill: Any) -> Tensor:
    return torch.cat([values, values.new_full((length - len(values), *values.shape[1:]), fill)])


def _cropped(picture: Image.Image, objects: Objects) -> tuple[Image.Image, Objects]:
    crop = draw_crop(objects.boxes, *picture.size)
    if crop is None:
        return picture, objects
    objects = Objects(*(part[crop.kept] for part in objects))
    boxes = F.crop(_boxes(objects.boxes, picture), crop.top, crop.left, crop.bottom - crop.top, crop.right - crop.left)
    whole = (boxes[:, 2:] - boxes[:, :2] >= LEAST_SIDE).all(1)
    return picture.crop(crop[:4]), Objects(*(part[whole] for part in objects._replace(boxes=boxes)))


def _boxes(boxes: Tensor, picture: Image.Image) -> BoundingBoxes:
    return BoundingBoxes(boxes, format="XYXY", canvas_size=(picture.height, picture.width))


def _resize(data: DetectionData) -> v2.Transform:
    return v2.Resize((data.image_size, data.image_size), InterpolationMode(data.interpolation), antialias=True)


def _normalise(data: DetectionData) -> v2.Transform:
    return v2.Compose(
        [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(data.mean, data.std, inplace=True)]
    )


def _example(image: Tensor, objects: Objects, size: tuple[int, int]) -> Example:
    """Plain tensors: batches know nothing of torchvision's kinds."""
    return {
        "image": image.as_subclass(torch.Tensor),
        "boxes": objects.boxes.as_subclass(torch.Tensor),
        "labels": objects.labels,
        "crowd": objects.crowd,
        "size": torch.tensor(size[::-1]),
    }
