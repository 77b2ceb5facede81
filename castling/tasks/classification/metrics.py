"""Top-1, top-5 and mean loss, as sums that several processes can add up."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


class Accuracy:
    """Counts over batches.

    Example:
        >>> accuracy = Accuracy()
        >>> accuracy.add(torch.eye(3), torch.tensor([0, 1, 1]))
        >>> round(accuracy.metrics()["top1"], 3)
        0.667
    """

    def __init__(self) -> None:
        self.sums = torch.zeros(4, dtype=torch.float64)  # right at once, right among five, loss, examples

    def add(self, logits: Tensor, targets: Tensor) -> None:
        """Count a batch of logits `(B, classes)` with targets `(B,)`; those below 0 are of unreadable ones."""
        readable = targets >= 0
        logits, targets = logits.float()[readable], targets[readable]
        best = logits.topk(min(5, logits.shape[-1]), dim=-1).indices == targets[:, None]  # (B, 5)
        loss = F.cross_entropy(logits, targets, reduction="sum")
        sums = torch.stack([best[:, 0].sum(), best.sum(), loss, readable.sum()])
        self.sums += sums.double().cpu()

    def metrics(self, reduce: Callable[[Tensor], Tensor] = lambda sums: sums) -> dict[str, float]:
        """`top1` and `top5` as shares, and `loss`; `reduce` adds up the sums of several processes.

        Raises:
            ValueError: if nothing was counted.
        """
        top1, top5, loss, count = reduce(self.sums).tolist()
        if count == 0:
            raise ValueError("there was no readable picture to evaluate on")
        return {"top1": top1 / count, "top5": top5 / count, "loss": loss / count}
