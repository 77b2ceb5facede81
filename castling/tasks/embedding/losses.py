"""The loss where there are no labels: how far a converted network's outputs are from the original's."""

from __future__ import annotations

from torch import Tensor

from castling.tasks.imitation import relative_error
from castling.tasks.task import Losses


def output_loss(outputs: Tensor, wanted: Tensor) -> Losses:
    """The relative error of outputs: 0 is the original, 1 is as far off as an output of nothing."""
    return Losses(relative_error(outputs, wanted), {})
