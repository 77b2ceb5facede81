"""The error of hidden patches over a split, as sums that several processes add up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from castling.measure.metric import Metric
from castling.measure.trees import Tree
from castling.tasks.pretraining.losses import picture_errors
from castling.tasks.pretraining.patches import Patch


class DrawingError:
    """Sums over batches.

    Args:
        patch: the size of a patch.
        normalised: whether each patch is wanted with mean 0 and variance 1.

    Example:
        >>> meter = DrawingError((4, 4), normalised=True)
        >>> batch = {"image": torch.randn(2, 3, 8, 8), "visible": torch.tensor([[1], [2]])}
        >>> meter.update({"patches": torch.zeros(2, 4, 48)}, batch)
        >>> meter.result()[0].shown  # 1 but for the spread of 48 numbers around their own mean
        '0.9792'
    """

    def __init__(self, patch: Patch, normalised: bool) -> None:
        self.patch, self.normalised = patch, normalised
        self.sums = torch.zeros(2, dtype=torch.float64)  # errors of pictures, and their number

    @torch.no_grad()
    def update(self, outputs: Tree, batch: Mapping[str, Any]) -> None:
        """Compare `patches` `(B, N, D)` with those of the batch that were hidden."""
        images, visible = batch["image"], batch["visible"]
        errors = picture_errors(outputs["patches"], images, visible, self.patch, self.normalised)
        self.sums += torch.tensor([float(errors.double().sum()), len(errors)], dtype=torch.float64)

    def merge(self, other: DrawingError) -> None:
        """Add the sums of another process."""
        self.sums += other.sums

    def result(self) -> list[Metric]:
        """`error`, of which less is better.

        Raises:
            ValueError: if nothing was seen.
        """
        error, count = self.sums.tolist()
        if count == 0:
            raise ValueError("there was no readable picture to evaluate on")
        return [Metric("error", error / count, unit="", higher_is_better=False)]
