"""Top-1, top-5 and mean loss, as sums that several processes add up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from castling.measure.metric import Metric


class Accuracy:
    """Counts over batches.

    Example:
        >>> accuracy = Accuracy()
        >>> accuracy.update(torch.eye(3), {"target": torch.tensor([0, 1, 1])})
        >>> [metric.name for metric in accuracy.result()], accuracy.result()[0].shown
        (['top1', 'top5', 'loss'], '66.67 %')
    """

    def __init__(self) -> None:
        self.sums = torch.zeros(4, dtype=torch.float64)  # right at once, right among five, loss, examples

    def update(self, outputs: Tensor, batch: Mapping[str, Any]) -> None:
        """Count logits `(B, classes)` against the batch's `target` `(B,)`."""
        targets = batch["target"]
        logits = outputs.float()
        best = logits.topk(min(5, logits.shape[-1]), dim=-1).indices == targets[:, None]  # (B, 5)
        loss = F.cross_entropy(logits, targets, reduction="sum")
        sums = torch.stack([best[:, 0].sum(), best.sum(), loss, torch.tensor(len(targets), device=loss.device)])
        self.sums += sums.double().cpu()

    def merge(self, other: Accuracy) -> None:
        """Add the counts of another process."""
        self.sums += other.sums

    def result(self) -> list[Metric]:
        """`top1` and `top5` as shares, and `loss`.

        Raises:
            ValueError: if nothing was counted.
        """
        top1, top5, loss, count = self.sums.tolist()
        if count == 0:
            raise ValueError("there was no readable picture to evaluate on")
        return [
            Metric("top1", top1 / count),
            Metric("top5", top5 / count),
            Metric("loss", loss / count, unit="", higher_is_better=False),
        ]
