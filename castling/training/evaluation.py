"""Evaluation of a model as it trains and castled, on the same pictures: the castling gap, each epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from accelerate.utils import send_to_device
from torch import Tensor, nn

from castling.attention import branches
from castling.conversion.switch import castled
from castling.measure.occupancy import record_occupancy


class OnDevice:
    """A loader whose batches are on a device; can be gone through again.

    Args:
        loader: of batches.
        device: where to put them.
    """

    def __init__(self, loader: Iterable[dict[str, Any]], device: torch.device | str) -> None:
        self.loader, self.device = loader, device

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (send_to_device(batch, self.device) for batch in self.loader)


def evaluate_both(
    task: Any,
    model: nn.Module,
    batches: Iterable[dict[str, Any]],
    reduce: Callable[[Tensor], Tensor] = lambda sums: sums,
    note_unreadable: Callable[[list[tuple[str, str]]], None] = lambda pictures: None,
) -> dict[str, Any]:
    """Metrics with the branch and castled.

    Args:
        task: whose `evaluate` gives the metrics.
        model: left in the mode it was in.
        batches: of the validation split, on the model's device; gone through once or twice.
        reduce: adds up sums of several processes.
        note_unreadable: gets names and errors of pictures that could not be read.

    Returns:
        `model` (metrics as it is), `castled` (None without a branch to drop) and `occupancy` per layer and head.
    """

    def noting() -> Iterator[dict[str, Any]]:
        for batch in batches:
            note_unreadable(batch.get("unreadable", []))
            yield batch

    was_training = model.training
    model.eval()
    try:
        with record_occupancy(model) as record:
            metrics = task.evaluate(model, noting(), reduce)
        without: dict[str, float] | None = None
        if branches(model):
            with castled(model):
                without = task.evaluate(model, batches, reduce)
        return {"model": metrics, "castled": without, "occupancy": record.mean()}
    finally:
        model.train(was_training)
