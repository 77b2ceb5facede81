"""Classifiers compared without a recipe: a judge for batches of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from castling.measure.trees import Tree
from castling.tasks.classification.metrics import Accuracy


class LabelJudge:
    """Judges by top-1 accuracy; batches are mappings with `image` and `target`.

    Example:
        >>> import torch
        >>> LabelJudge().agreement(torch.eye(2), torch.ones(2, 2).triu(), {}).tolist()
        [1.0, 1.0]
    """

    def forward(self, network: Any, batch: Mapping[str, Any]) -> Tree:
        """Logits `(B, classes)`."""
        return network(batch["image"])

    def meter(self) -> Accuracy:
        """Top-1 accuracy decides."""
        return Accuracy()

    def agreement(self, outputs: Tree, others: Tree, batch: Mapping[str, Any]) -> Tensor:
        """Whether both choose the same class."""
        return (outputs.argmax(-1) == others.argmax(-1)).float()
