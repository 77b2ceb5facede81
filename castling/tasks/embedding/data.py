"""A folder of pictures without labels: what the network sees of them, and how they are varied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from PIL import Image
from torch import Tensor

from castling.tasks.preparation import ManySizesConfig, VariationConfig


@dataclass(frozen=True)
class FolderConfig(ManySizesConfig):
    """A folder of pictures, in any order and depth.

    Args:
        root: the folder. Where it has `train` and `val` in it, these are the splits (`validation` or `test` may stand
            for `val`); otherwise a tenth of its pictures, chosen by their names, is kept for evaluation.

    Raises:
        ValueError: as for `ManySizesConfig`.
    """

    root: str | None = None


@dataclass(frozen=True)
class GentleConfig(VariationConfig):
    """How training pictures are varied where nothing but a network's own answers is learned: crops and mirroring."""

    crop_scale: tuple[float, float] | None = (0.35, 1.0)
    color_jitter: float = 0.0
    auto_augment: str | None = None
    erasing: float = 0.0


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
