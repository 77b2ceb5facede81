"""What a masked autoencoder makes of pictures: hidden parts drawn anew, and how far they are from the truth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from PIL import Image
from torch import Tensor, nn

from castling.tasks.prediction import Seen
from castling.tasks.preparation import PictureConfig
from castling.tasks.pretraining.drawing import draw_parts
from castling.tasks.pretraining.losses import picture_errors
from castling.tasks.pretraining.patches import Patch, fixed_places, grid_of, masked_by_share


@dataclass(frozen=True)
class HidingOptions:
    """What is hidden.

    Args:
        masked: the share of hidden patches; None for that of training.
        seed: other numbers hide others; the same ones in all pictures.

    Raises:
        ValueError: for a share outside (0, 1), or a seed below 0.
    """

    masked: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.masked is not None and not 0 < self.masked < 1:
            raise ValueError(f"masked must lie between 0 and 1; got {self.masked}")
        if self.seed < 0:
            raise ValueError(f"seed must be at least 0; got {self.seed}")


@dataclass(frozen=True)
class DrawnPrediction:
    """What the network draws into one picture.

    Args:
        name: the path, or the place in the input.
        drawing_error: the mean error of hidden patches.
        num_hidden: their number.
        num_patches: the number of all.
        drawn: the parts that were seen, with the others drawn in, and the whole, side by side.
        error: None, as the picture was read.
    """

    name: str
    drawing_error: float
    num_hidden: int
    num_patches: int
    drawn: Image.Image = field(compare=False)
    error: str | None = None

    def line(self) -> str:
        """One line of text."""
        hidden = f"{self.num_hidden} of {self.num_patches} patches hidden"
        return f"{self.name}: {hidden}, drawn with an error of {self.drawing_error:.4g}"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {name: value for name, value in vars(self).items() if name != "drawn"}

    def draw(self, picture: Image.Image) -> Image.Image:
        """What was seen, what was drawn, and the picture as the network gets it, side by side."""
        return self.drawn


class WithHidden(nn.Module):
    """A masked autoencoder that is shown parts of every picture, the same places in all.

    Args:
        network: the autoencoder.
        patch: the size of its patches.
        masked: the share of hidden patches.
        seed: which.
    """

    def __init__(self, network: nn.Module, patch: Patch, masked: float, seed: int) -> None:
        super().__init__()
        self.network, self.patch, self.masked, self.seed = network, patch, masked, seed

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """What was drawn, beside the pictures and the places that were seen."""
        rows, columns = grid_of(images, self.patch)
        places = fixed_places(masked_by_share(rows * columns, self.masked), self.seed)
        visible = places.to(images.device).expand(len(images), -1)
        return {"image": images, "visible": visible, **self.network(images, visible)}


def interpret_drawings(
    data: PictureConfig, patch: Patch, normalised: bool
) -> Callable[[Mapping[str, Tensor], Sequence[Seen]], list[DrawnPrediction]]:
    """Makes predictions of what `WithHidden` gives.

    Args:
        data: how pictures are normalised.
        patch: the size of a patch.
        normalised: whether patches are drawn with mean 0 and variance 1.
    """

    def interpret(outputs: Mapping[str, Tensor], seen: Sequence[Seen]) -> list[DrawnPrediction]:
        drawn, images, visible = outputs["patches"], outputs["image"], outputs["visible"]
        errors = picture_errors(drawn, images, visible, patch, normalised).tolist()
        rows = draw_parts(drawn, images, visible, patch, normalised, data.mean, data.std)
        num_patches = drawn.shape[1]
        num_hidden = num_patches - visible.shape[1]
        return [
            DrawnPrediction(picture.name, error, num_hidden, num_patches, row)
            for picture, error, row in zip(seen, errors, rows, strict=True)
        ]

    return interpret
