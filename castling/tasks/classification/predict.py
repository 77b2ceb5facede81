"""Labels with probabilities for pictures in any form: a path, a folder, a PIL image, an array or a tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms.functional import to_pil_image

from castling.tasks.classification.data import DataConfig, eval_transform, in_channels
from castling.tasks.classification.sources import pictures_in, read_picture

Picture = str | Path | Image.Image | np.ndarray | Tensor


@dataclass(frozen=True)
class Prediction:
    """What the network sees in one picture.

    Args:
        name: the path, or the place in the input.
        labels: the likeliest classes, best first.
        probabilities: of these.
        error: why the picture could not be read; then there are no labels.
    """

    name: str
    labels: list[str]
    probabilities: list[float]
    error: str | None = None


class Predictor:
    """A network with what it needs to see pictures as it did in training.

    Args:
        model: a classifier; put into evaluation mode.
        data: how pictures are prepared.
        labels: names of its classes.

    Example:
        >>> import timm
        >>> model = timm.create_model("castling_levit_128", num_classes=2)
        >>> predictor = Predictor(model, DataConfig(image_size=64), ["cat", "dog"])
        >>> [prediction] = predictor(np.zeros((80, 100, 3), np.uint8))
        >>> sorted(prediction.labels), round(sum(prediction.probabilities), 3)
        (['cat', 'dog'], 1.0)
    """

    def __init__(self, model: nn.Module, data: DataConfig, labels: Sequence[str]) -> None:
        self.model, self.data, self.labels = model.eval(), data, list(labels)
        self.transform = eval_transform(data)

    def __call__(
        self,
        pictures: Picture | Sequence[Picture],
        top: int = 5,
        batch_size: int = 32,
        on_batch: Callable[[int], None] = lambda done: None,
    ) -> list[Prediction]:
        """Predict.

        Args:
            pictures: one or several. A folder stands for all pictures in it; an array is `(H, W)` or `(H, W, C)`, a
                tensor `(C, H, W)`, both 8-bit or from 0 to 1.
            top: how many classes to name.
            batch_size: pictures at a time.
            on_batch: is told how many pictures were done.

        Returns:
            One prediction per picture, in order.

        Raises:
            ValueError: for a path that does not exist, a folder without pictures, or another kind of input.
        """
        if top < 1 or batch_size < 1:
            raise ValueError(f"top and batch_size must be at least 1; got {top} and {batch_size}")
        named = iter(_named(pictures))
        found: list[Prediction] = []
        while batch := list(islice(named, batch_size)):
            found += self._predict(batch, min(top, len(self.labels)))
            on_batch(len(batch))
        return found

    @torch.inference_mode()
    def _predict(self, batch: list[tuple[str, Picture]], top: int) -> list[Prediction]:
        read: dict[int, Tensor] = {}
        errors: dict[int, str] = {}
        for place, (_, picture) in enumerate(batch):
            try:
                opened = read_picture(Path(picture)) if isinstance(picture, (str, Path)) else _as_image(picture)
                read[place] = self.transform(in_channels(opened, self.data.channels))
            except Exception as error:  # decoders raise whatever they like
                if not isinstance(picture, (str, Path)):
                    raise
                errors[place] = str(error)
        best: dict[int, tuple[list[float], list[int]]] = {}
        if read:
            images = torch.stack(list(read.values())).to(next(self.model.parameters()).device)
            probabilities, classes = self.model(images).float().softmax(-1).topk(top, dim=-1)
            best = dict(zip(read, zip(probabilities.tolist(), classes.tolist(), strict=True), strict=True))
        return [
            Prediction(name, [], [], errors[place])
            if place in errors
            else Prediction(name, [self.labels[index] for index in best[place][1]], best[place][0])
            for place, (name, _) in enumerate(batch)
        ]


def _named(pictures: Picture | Iterable[Picture]) -> Iterator[tuple[str, Picture]]:
    several = [pictures] if isinstance(pictures, (str, Path, Image.Image, np.ndarray, Tensor)) else pictures
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


def _as_image(picture: Image.Image | np.ndarray | Tensor) -> Image.Image:
    if isinstance(picture, Image.Image):
        return picture
    kinds = ("torch.uint8", "uint8", "torch.float16", "torch.float32", "torch.float64", "float16", "float32", "float64")
    if not isinstance(picture, (np.ndarray, Tensor)) or picture.ndim not in (2, 3) or str(picture.dtype) not in kinds:
        raise ValueError(
            "expected a path, a PIL image, an array (H, W[, C]) or a tensor (C, H, W), 8-bit or floats; "
            f"got {picture!r:.80}"
        )
    if "float" in str(picture.dtype):
        if not (picture.min() >= 0 and picture.max() <= 1):
            raise ValueError(f"floats must lie from 0 to 1; got {float(picture.min())} to {float(picture.max())}")
        picture = (picture * 255).round()
        picture = picture.astype(np.uint8) if isinstance(picture, np.ndarray) else picture.to(torch.uint8)
    return to_pil_image(picture)
