"""Occupancy: the share of attention-map entries that survive the mask, per layer and head (the paper's "nonzeros").

At initialisation attention is nearly uniform and the mask is empty; it fills as attention sharpens. Only a mask that
was open and emptied again says that the network has learnt to do without the branch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from castling.attention import branches

Occupancy = dict[str, list[float]]


def last_occupancy(model: nn.Module) -> Occupancy:
    """Occupancy per attention and head in the last forward pass."""
    found = {name: branch.occupancy for name, branch in branches(model).items()}
    return {name: occupancy.tolist() for name, occupancy in found.items() if occupancy is not None}


class OccupancyRecord:
    """What `record_occupancy` saw.

    Attributes:
        num_keys: keys of each attention, the N of the last pass.
    """

    def __init__(self) -> None:
        self.num_keys: dict[str, int] = {}
        self._sums: dict[str, Tensor] = {}
        self._examples: dict[str, int] = {}

    def add(self, name: str, occupancy: Tensor, num_keys: int, num_examples: int) -> None:
        """Add one forward pass of one attention."""
        self.num_keys[name] = num_keys
        self._sums[name] = self._sums.get(name, torch.zeros_like(occupancy)) + occupancy * num_examples
        self._examples[name] = self._examples.get(name, 0) + num_examples

    def mean(self) -> Occupancy:
        """Mean occupancy per attention and head over all examples."""
        return {name: (total / self._examples[name]).tolist() for name, total in self._sums.items()}


@contextmanager
def record_occupancy(model: nn.Module, record: OccupancyRecord | None = None) -> Iterator[OccupancyRecord]:
    """Record the occupancy of every branch over several forward passes.

    Args:
        model: a network; one without branches records nothing.
        record: what to add to; a new one where None.

    Example:
        >>> from castling import CastlingAttention
        >>> attention = nn.Sequential(CastlingAttention(64, num_heads=2))
        >>> with record_occupancy(attention) as record:
        ...     _ = attention(torch.randn(1, 100, 64))
        >>> record.num_keys, len(record.mean()["0"])
        ({'0': 100}, 2)
    """
    record = OccupancyRecord() if record is None else record
    hooks = [
        branch.register_forward_hook(
            lambda module, inputs, _, name=name: record.add(
                name, module.occupancy, inputs[1].shape[-3], inputs[1].shape[0]
            )
        )
        for name, branch in branches(model).items()
    ]
    try:
        yield record
    finally:
        for hook in hooks:
            hook.remove()
