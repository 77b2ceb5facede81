"""Vectors of pictures: what such a network's outputs are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image
from torch import Tensor

from castling.tasks.prediction import Seen, with_caption
from castling.tasks.task import Prediction


@dataclass(frozen=True)
class VectorOptions:
    """There is nothing to choose."""


@dataclass(frozen=True)
class VectorPrediction:
    """The output for one picture.

    Args:
        name: the path, or the place in the input.
        vector: the output, flattened.
        error: None, as the picture was read.
    """

    name: str
    vector: list[float]
    error: str | None = None

    def line(self) -> str:
        """One line of text: how long the vector is, and its first numbers."""
        first = ", ".join(f"{value:.4g}" for value in self.vector[:4])
        return f"{self.name}: {len(self.vector)} numbers: {first}, ..."

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return dict(vars(self))

    def draw(self, picture: Image.Image) -> Image.Image:
        """The picture with its line below it."""
        return with_caption(picture, self.line())


def interpret_vectors(outputs: Tensor, seen: Sequence[Seen]) -> list[Prediction]:
    """Predictions of outputs `(B, ...)`."""
    vectors = outputs.float().flatten(1).tolist()
    return [VectorPrediction(picture.name, vector) for picture, vector in zip(seen, vectors, strict=True)]
