"""How far a network's outputs are from those that it is to give: the relative error, and the cosine of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from castling.measure.metric import Metric


class OutputError:
    """Sums over batches.

    Args:
        wanted: the function from images to the outputs that are wanted; None in a meter that came from elsewhere.
    """

    def __init__(self, wanted: Callable[[Tensor], Tensor] | None) -> None:
        self.wanted = wanted
        self.sums = torch.zeros(4, dtype=torch.float64)  # squared difference, squared size, cosine, examples

    def __getstate__(self) -> dict[str, Any]:
        return {"wanted": None, "sums": self.sums}  # other processes have the network

    @torch.no_grad()
    def update(self, outputs: Tensor, batch: Mapping[str, Any]) -> None:
        """Compare outputs `(B, ...)` with the original's for the same pictures."""
        found = outputs.float().flatten(1)
        assert self.wanted is not None
        wanted = self.wanted(batch["image"]).float().flatten(1)
        cosine = torch.nn.functional.cosine_similarity(found, wanted, dim=1).sum()
        count = torch.tensor(float(len(found)), device=found.device)
        self.sums += torch.stack([(found - wanted).square().sum(), wanted.square().sum(), cosine, count]).double().cpu()

    def merge(self, other: OutputError) -> None:
        """Add the sums of another process."""
        self.sums += other.sums

    def result(self) -> list[Metric]:
        """`error`, of which less is better, and `cosine`.

        Raises:
            ValueError: if nothing was seen.
        """
        difference, size, cosine, count = self.sums.tolist()
        if count == 0:
            raise ValueError("there was no readable picture to evaluate on")
        error = difference / max(size, 1e-12)
        return [Metric("error", error, unit="", higher_is_better=False), Metric("cosine", cosine / count, unit="")]
