"""Evaluation of a network as it is and castled, on the same pictures: the castling gap, whatever the task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from accelerate.utils import gather_object, send_to_device
from torch import nn

from castling.conversion import castled, has_castling_attention, is_castled
from castling.measure.eval_mode import eval_mode
from castling.measure.metric import Metric
from castling.measure.occupancy import Occupancy, record_occupancy
from castling.measure.trees import all_finite
from castling.tasks.task import Batch, Task


class OnDevice:
    """A loader whose batches are on a device; can be gone through again.

    Args:
        loader: the batches.
        device: the device to put them on.
    """

    def __init__(self, loader: Iterable[Batch], device: torch.device | str) -> None:
        self.loader, self.device = loader, device

    def __iter__(self) -> Iterator[Batch]:
        return (send_to_device(batch, self.device) for batch in self.loader)


@dataclass(frozen=True)
class Evaluation:
    """What was found.

    Args:
        model: metrics of the network as it is, the deciding one first.
        castled: metrics without its branches and its host's softmax; None where there is nothing to drop.
        occupancy: per attention and head.
        finite: whether all outputs were finite numbers; the metrics say nothing where they were not.
    """

    model: list[Metric]
    castled: list[Metric] | None
    occupancy: Occupancy
    finite: bool = True


def evaluate(task: Task, network: nn.Module, batches: Iterable[Batch], drop_branches: bool = False) -> Evaluation:
    """Metrics of a network, of all processes together.

    Args:
        task: whose meter it is.
        network: left in the mode it was in.
        batches: the batches of the validation split, on the network's device; gone through once or twice.
        drop_branches: whether to evaluate without the branches as well, where there are any.
    """
    with eval_mode(network):
        with record_occupancy(network) as record:
            metrics, finite = _metrics(task, network, batches)
        without, finite_without = None, True
        if drop_branches and has_castling_attention(network) and not is_castled(network):
            with castled(network):
                without, finite_without = _metrics(task, network, batches)
    return Evaluation(metrics, without, record.mean(), finite and finite_without)


@torch.no_grad()
def _metrics(task: Task, network: nn.Module, batches: Iterable[Batch]) -> tuple[list[Metric], bool]:
    meter, finite = task.meter(), True
    for batch in batches:
        outputs = task.forward(network, batch)
        finite = finite and all_finite(outputs)
        meter.update(outputs, batch)
    (first, finite), *others = gather_object([(meter, finite)])
    for other, others_finite in others:
        first.merge(other)
        finite = finite and others_finite
    return first.result(), finite


def best_device() -> str:
    """The accelerator of this machine, or its processor."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return "cpu" if found is None else found.type
