"""Labels with probabilities: what a classifier's outputs mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image
from torch import Tensor

from castling.tasks.prediction import Seen, with_caption
from castling.tasks.task import Prediction


@dataclass(frozen=True)
class LabelOptions:
    """What to say of a picture.

    Args:
        top: how many classes to name.

    Raises:
        ValueError: for fewer than one.
    """

    top: int = 5

    def __post_init__(self) -> None:
        if self.top < 1:
            raise ValueError(f"top must be at least 1; got {self.top}")


@dataclass(frozen=True)
class LabelPrediction:
    """What the network sees in one picture.

    Args:
        name: the path, or the place in the input.
        labels: the likeliest classes, best first.
        probabilities: the probabilities of these.
        error: None, as the picture was read.
    """

    name: str
    labels: list[str]
    probabilities: list[float]
    error: str | None = None

    def line(self) -> str:
        """One line of text."""
        return f"{self.name}: " + ", ".join(self._pairs())

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return dict(vars(self))

    def draw(self, picture: Image.Image) -> Image.Image:
        """The picture with the classes below it."""
        return with_caption(picture, "\n".join(self._pairs()))

    def _pairs(self) -> list[str]:
        pairs = zip(self.labels, self.probabilities, strict=True)
        return [f"{label} {100 * probability:.1f} %" for label, probability in pairs]


def interpret_logits(
    labels: Sequence[str], options: LabelOptions
) -> Callable[[Tensor, Sequence[Seen]], list[Prediction]]:
    """Makes predictions of logits `(B, classes)`."""

    def interpret(logits: Tensor, seen: Sequence[Seen]) -> list[Prediction]:
        probabilities, classes = logits.float().softmax(-1).topk(min(options.top, len(labels)), dim=-1)
        return [
            LabelPrediction(picture.name, [labels[index] for index in best], shares)
            for picture, best, shares in zip(seen, classes.tolist(), probabilities.tolist(), strict=True)
        ]

    return interpret
