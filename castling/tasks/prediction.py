"""Predictions for pictures in any form: a path, a folder, the bytes of a file, a PIL image, an array or a tensor.

Reading, preparing and batching are the same for every task; what outputs mean is the task's.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn
from torchvision.transforms.functional import to_pil_image

from castling.measure.heap import keep_heap
from castling.measure.trees import Tree, finite_examples
from castling.tasks.pictures import from_0_to_1, in_channels, pictures_in, read_picture, upright
from castling.tasks.task import Picture, Prediction

NOT_FINITE = "the network gives numbers that are not finite: its weights may be damaged, or overflow"


@dataclass(frozen=True)
class Seen:
    """A picture that a network looked at.

    Args:
        name: the path, or the place in the input.
        size: width and height before it was prepared.
    """

    name: str
    size: tuple[int, int]


@dataclass(frozen=True)
class Failed:
    """What stands for the prediction of a picture of which there is none.

    Args:
        name: the path.
        error: the reason.
    """

    name: str
    error: str | None

    def line(self) -> str:
        """One line of text."""
        return f"{self.name}: {self.error}"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"name": self.name, "error": self.error}

    def draw(self, picture: Image.Image) -> Image.Image:
        """The picture as it is."""
        return picture


class PicturePredictor:
    """A network with what it needs to see pictures as it did in training.

    Args:
        network: put into evaluation mode.
        prepare: makes the network's input `(C, H, W)` of a picture; inputs of one size are looked at together, so that
            none changes by the company that it comes in.
        interpret: makes predictions of a batch's outputs.
        channels: 1 for grey, 3 for colour.
    """

    def __init__(
        self,
        network: nn.Module,
        prepare: Callable[[Image.Image], Tensor],
        interpret: Callable[[Tree, Sequence[Seen]], Sequence[Prediction]],
        channels: int,
    ) -> None:
        keep_heap()
        self.network, self.prepare, self.interpret, self.channels = network.eval(), prepare, interpret, channels

    def __call__(
        self,
        pictures: Picture | Iterable[Picture],
        batch_size: int = 32,
        on_batch: Callable[[int], None] = lambda done: None,
    ) -> list[Prediction]:
        """Predict.

        Args:
            pictures: one or several, in a list or from a generator. A folder stands for all pictures in it, bytes are a
                file's; an array is `(H, W)` or `(H, W, C)`, a tensor `(C, H, W)`, both 8-bit or from 0 to 1; with one
                more dimension in front they are several.
            batch_size: the number of pictures at a time.
            on_batch: a function that is told how many pictures were done.

        Returns:
            One prediction per picture, in order.

        Raises:
            ValueError: for a path that does not exist, a folder without pictures, or another kind of input.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1; got {batch_size}")
        named = iter(named_pictures(pictures))
        found: list[Prediction] = []
        while batch := list(islice(named, batch_size)):
            found += self._predict(batch)
            on_batch(len(batch))
        return found

    @torch.inference_mode()
    def _predict(self, batch: list[tuple[str, Picture]]) -> list[Prediction]:
        found: dict[int, Prediction] = {}  # by place: the same path may come twice
        opened: dict[int, Image.Image] = {}
        for place, (name, picture) in enumerate(batch):
            try:
                opened[place] = in_channels(open_picture(picture), self.channels)
            except Exception as error:  # decoders raise whatever they like
                if not isinstance(picture, (str, Path)):
                    raise
                found[place] = Failed(name, f"unreadable: {error}")
        prepared = {place: self.prepare(picture) for place, picture in opened.items()}
        for shape in dict.fromkeys(image.shape for image in prepared.values()):
            places = [place for place, image in prepared.items() if image.shape == shape]
            images = torch.stack([prepared[place] for place in places])
            device = next((weights.device for weights in self.network.parameters()), images.device)
            outputs = self.network(images.to(device))
            seen = [Seen(batch[place][0], opened[place].size) for place in places]
            found.update(zip(places, self.interpret(outputs, seen), strict=True))
            for place, finite in zip(places, finite_examples(outputs).tolist(), strict=True):
                if not finite:
                    found[place] = Failed(batch[place][0], NOT_FINITE)
        return [found[place] for place in range(len(batch))]


def named_pictures(pictures: Picture | Iterable[Picture]) -> Iterator[tuple[str, Picture]]:
    """Pictures with their names; a folder stands for all pictures in it.

    Raises:
        ValueError: for a path that does not exist, a folder without pictures, or what is no picture at all.
    """
    if isinstance(pictures, (np.ndarray, Tensor)) and pictures.ndim == 4:
        several: Iterable[Picture] = list(pictures)
    elif isinstance(pictures, (str, Path, bytes, Image.Image, np.ndarray, Tensor)):
        several = [pictures]
    elif isinstance(pictures, Iterable):
        several = pictures
    else:
        raise _no_picture(pictures)
    for place, picture in enumerate(several):
        if not isinstance(picture, (str, Path)):
            yield str(place), picture
        elif Path(picture).is_dir():
            inside = [Path(picture, file) for file in sorted(pictures_in(Path(picture), Path(picture)))]
            if not inside:
                raise ValueError(f"there are no pictures in {picture}")
            yield from ((str(path), path) for path in inside)
        elif Path(picture).is_file():
            yield str(picture), picture
        else:
            raise ValueError(f"there is no picture or folder {picture}")


def open_picture(picture: Picture) -> Image.Image:
    """A picture of any form as PIL has it.

    Raises:
        ValueError: for another kind of input, one without pixels, or floats that do not lie from 0 to 1.
    """
    if isinstance(picture, (str, Path)):
        return read_picture(Path(picture))
    if isinstance(picture, bytes):
        return read_picture(io.BytesIO(picture))
    if isinstance(picture, Image.Image):
        return upright(picture)
    kinds = ("torch.uint8", "uint8", "torch.float16", "torch.float32", "torch.float64", "float16", "float32", "float64")
    if not isinstance(picture, (np.ndarray, Tensor)) or picture.ndim not in (2, 3) or str(picture.dtype) not in kinds:
        raise _no_picture(picture)
    if 0 in picture.shape:
        raise ValueError(f"a picture needs pixels; got one of the shape {tuple(picture.shape)}")
    if "float" in str(picture.dtype):
        picture = (from_0_to_1(picture) * 255).round()
        picture = picture.astype(np.uint8) if isinstance(picture, np.ndarray) else picture.to(torch.uint8)
    return to_pil_image(picture)


def _no_picture(given: object) -> ValueError:
    shape = (
        f" of the shape {tuple(given.shape)} and type {given.dtype}" if isinstance(given, (np.ndarray, Tensor)) else ""
    )
    return ValueError(
        "expected a path, bytes of a file, a PIL image, an array (H, W[, C]) or a tensor (C, H, W), 8-bit or floats; "
        f"got {f'one{shape}' if shape else f'{given!r:.80}'}"
    )


def with_caption(picture: Image.Image, text: str) -> Image.Image:
    """A picture in colour with lines of text below it.

    Example:
        >>> with_caption(Image.new("L", (64, 64)), "a line of text").mode
        'RGB'
    """
    lines = text.splitlines() or [""]
    measured = ImageDraw.Draw(Image.new("RGB", (1, 1))).multiline_textbbox((0, 0), text)
    width = max(picture.width, int(measured[2]) + 8)
    drawn = Image.new("RGB", (width, picture.height + int(measured[3]) + 4 + 2 * len(lines)), "white")
    drawn.paste(picture.convert("RGB"), ((width - picture.width) // 2, 0))
    ImageDraw.Draw(drawn).multiline_text((4, picture.height + 2), text, fill="black")
    return drawn
