"""Which examples come when: a pure function of seed, epoch and position, whatever the number of processes.

So a run can stop in the middle of an epoch and go on, on another number of processes, with the very same pictures.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import Sampler


class Key(NamedTuple):
    """One example of an epoch; `repeat` tells copies of it apart, which are augmented differently."""

    epoch: int
    example: int
    repeat: int = 0


class Shard(NamedTuple):
    """The part of every batch that one of several processes works on."""

    rank: int = 0
    num_shards: int = 1


class EpochBatches(Sampler[list[Key]]):
    """The batches of an epoch, from any position on.

    Args:
        num_examples: size of the dataset.
        batch_size: examples of a batch over all processes.
        seed: the seed of the shuffling; None keeps the order and the incomplete last batch.
        shard: which part of every batch to yield.
        num_parts: the number of equal parts in which a process gets its share of a batch (gradient accumulation).
        repeats: copies of each example in a row (repeated augmentation); an epoch keeps its length.

    Raises:
        ValueError: if a batch is empty, larger than the dataset, or does not split evenly.

    Example:
        >>> batches = EpochBatches(6, batch_size=4, seed=0)
        >>> batches.seek(epoch=2)
        >>> [[key.example for key in batch] for batch in batches]
        [[5, 2, 0, 1]]
    """

    def __init__(
        self,
        num_examples: int,
        batch_size: int,
        seed: int | None = None,
        shard: Shard = Shard(),  # noqa: B008 - immutable
        num_parts: int = 1,
        repeats: int = 1,
    ) -> None:
        if seed is None and batch_size < 1:
            raise ValueError(f"batch_size must be at least 1; got {batch_size}")
        if seed is not None and not 1 <= batch_size <= num_examples:
            raise ValueError(f"batch_size must lie between 1 and the {num_examples} examples; got {batch_size}")
        if seed is not None and batch_size % (shard.num_shards * num_parts):
            raise ValueError(
                f"batch_size {batch_size} does not split into {shard.num_shards} processes with {num_parts} parts each"
            )
        self.num_examples, self.batch_size, self.seed = num_examples, batch_size, seed
        self.shard, self.num_parts, self.repeats = shard, num_parts, repeats
        self.seek(0)

    @property
    def num_batches(self) -> int:
        """Batches of a whole epoch, over all processes."""
        full, rest = divmod(self.num_examples, self.batch_size)
        return full + (self.seed is None and rest > 0)

    def seek(self, epoch: int, start: int = 0) -> None:
        """Begin the next iteration in this epoch, with its batch number `start`."""
        self.epoch, self.start = epoch, start

    def __len__(self) -> int:
        return (self.num_batches - self.start) * self.num_parts

    def __iter__(self) -> Iterator[list[Key]]:
        order = self._order()
        epoch, rank, num_shards = self.epoch, *self.shard
        for number in range(self.start, self.num_batches):
            first = number * self.batch_size
            length = min(self.batch_size, self.num_examples - first)
            share = range(first + length * rank // num_shards, first + length * (rank + 1) // num_shards)
            size = max(1, -(-len(share) // self.num_parts))
            for part in range(0, len(share), size):
                yield [self._key(epoch, order, place) for place in share[part : part + size]]

    def _order(self) -> np.ndarray | None:
        """The examples of an epoch as an array: a million keys would be a fifth of a GB, and a second to make."""
        if self.seed is None:
            return None
        return np.random.default_rng([self.seed, self.epoch]).permutation(self.num_examples)

    def _key(self, epoch: int, order: np.ndarray | None, place: int) -> Key:
        index, repeat = divmod(place, self.repeats)
        return Key(epoch, place if order is None else int(order[index]), 0 if order is None else repeat)


def seed_everything(*numbers: int) -> None:
    """Seed Python's, NumPy's and torch's generators, on all devices, with a mix of several numbers."""
    torch.manual_seed(seed_host(*numbers))


def seed_host(*numbers: int) -> int:
    """Seed the generators of this process; returns the seed of torch's, which may be wanted on other devices too."""
    words = [int(word) for word in np.random.SeedSequence(numbers).generate_state(3)]
    random.seed(words[0])
    np.random.seed(words[1])
    torch.default_generator.manual_seed(words[2])
    return words[2]


@contextmanager
def kept_generators() -> Iterator[None]:
    """Put this process's generators back as they were: what augments pictures draws from global ones.

    Those of other devices stay as they are: training may be drawing from them.
    """
    python_state, numpy_state, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)


@contextmanager
def seeded(*numbers: int) -> Iterator[None]:
    """Seed this process's generators for a moment and put them back."""
    with kept_generators():
        seed_host(*numbers)
        yield
