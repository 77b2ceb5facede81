import random
from itertools import chain

import numpy as np
import pytest
import torch

from castling.tasks.batches import EpochBatches, Key, Shard, seeded


def epoch_of(batches, epoch=0, start=0):
    batches.seek(epoch, start)
    return list(batches)


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("num_shards", [2, 3, 6])
@pytest.mark.parametrize("repeats", [1, 3])
def test_order_does_not_depend_on_the_number_of_shards(seed, num_shards, repeats):
    whole = epoch_of(EpochBatches(42, 12, seed, repeats=repeats), epoch=2)
    shards = [
        epoch_of(EpochBatches(42, 12, seed, Shard(rank, num_shards), repeats=repeats), epoch=2)
        for rank in range(num_shards)
    ]
    if seed is not None:
        assert {len(share) for shares in shards for share in shares} == {12 // num_shards}
    assert [list(chain(*shares)) for shares in zip(*shards, strict=True)] == whole


@pytest.mark.parametrize("num_shards", [2, 4])
def test_evaluation_on_shards_sees_every_example_once(num_shards):
    # Fewer examples in the last batch than shards.
    shards = [epoch_of(EpochBatches(9, 8, shard=Shard(rank, num_shards))) for rank in range(num_shards)]
    assert sorted(key.example for shares in shards for share in shares for key in share) == list(range(9))


@pytest.mark.parametrize("start", [0, 1, 3, 4])
@pytest.mark.parametrize("seed", [None, 3])
def test_seek_gives_the_tail_of_the_epoch(start, seed):
    batches = EpochBatches(20, 5, seed, Shard(0, 1), num_parts=5)
    whole = epoch_of(batches, epoch=7)
    assert epoch_of(batches, epoch=7, start=start) == whole[start * 5 :]
    assert len(batches) == len(whole) - start * 5


def test_epochs_differ_and_are_reproducible():
    epochs = [epoch_of(EpochBatches(40, 8, seed=3), epoch) for epoch in range(3)]
    orders = [[key.example for batch in batches for key in batch] for batches in epochs]
    assert orders[0] != orders[1] != orders[2] != orders[0]
    assert all(sorted(order) == list(range(40)) for order in orders)
    assert epochs == [epoch_of(EpochBatches(40, 8, seed=3), epoch) for epoch in range(3)]
    assert all(key.epoch == epoch for epoch in range(3) for batch in epochs[epoch] for key in batch)
    assert epoch_of(EpochBatches(40, 8, seed=4)) != epochs[0]


def test_order_does_not_depend_on_the_global_generators():
    first = epoch_of(EpochBatches(40, 8, seed=3))
    state = np.random.get_state()[1].copy()
    with seeded(99):
        assert epoch_of(EpochBatches(40, 8, seed=3)) == first
    assert np.array_equal(np.random.get_state()[1], state)


def test_parts_are_equal_and_together_the_share():
    whole = epoch_of(EpochBatches(30, 12, seed=0, shard=Shard(1, 2)))
    parts = epoch_of(EpochBatches(30, 12, seed=0, shard=Shard(1, 2), num_parts=3))
    assert [len(part) for part in parts] == 6 * [2]
    assert [list(chain(*parts[first : first + 3])) for first in (0, 3)] == whole


def test_training_drops_the_incomplete_batch():
    batches = EpochBatches(11, 4, seed=0, num_parts=2)
    assert [len(part) for part in batches] == [2, 2, 2, 2]
    assert (batches.num_batches, len(batches)) == (2, 4)


def test_evaluation_keeps_the_order_and_the_incomplete_batch():
    batches = EpochBatches(11, 4)
    assert [[key.example for key in batch] for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    assert batches.num_batches == len(batches) == 3
    assert len(list(EpochBatches(8, 4))) == 2
    assert [len(batch) for batch in EpochBatches(3, 100)] == [3]


@pytest.mark.parametrize(("num_examples", "repeats"), [(30, 3), (31, 4)])
def test_repeats_keep_the_length_and_number_the_copies(num_examples, repeats):
    plain = EpochBatches(num_examples, 6, seed=0)
    batches = EpochBatches(num_examples, 6, seed=0, repeats=repeats)
    keys = list(chain(*epoch_of(batches, epoch=1)))
    assert (batches.num_batches, len(keys)) == (plain.num_batches, 30)
    assert len(set(keys)) == len(keys)
    assert [key.repeat for key in keys] == [place % repeats for place in range(30)]
    assert len({key.example for key in keys}) == -(-30 // repeats)
    for first in range(0, 30, repeats):
        assert len({key.example for key in keys[first : first + repeats]}) == 1


def test_repeats_choose_other_examples_in_another_epoch():
    batches = EpochBatches(30, 6, seed=0, repeats=3)
    chosen = [{key.example for key in chain(*epoch_of(batches, epoch))} for epoch in range(2)]
    assert chosen[0] != chosen[1]


@pytest.mark.parametrize("batch_size", [0, -2, 7])
def test_batch_must_fit_into_the_dataset(batch_size):
    with pytest.raises(ValueError, match=f"batch_size must lie between 1 and the 6 examples; got {batch_size}"):
        EpochBatches(6, batch_size, seed=0)


@pytest.mark.parametrize(("num_shards", "num_parts"), [(3, 1), (1, 5), (2, 4)])
def test_batch_must_split_evenly(num_shards, num_parts):
    with pytest.raises(ValueError, match=f"batch_size 4 does not split into {num_shards} processes with {num_parts} p"):
        EpochBatches(8, 4, seed=0, shard=Shard(0, num_shards), num_parts=num_parts)


def test_key_without_a_repeat_is_the_first():
    assert Key(1, 2) == Key(1, 2, 0)


def draws():
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def states():
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()


def test_seeded_gives_the_same_draws_for_the_same_numbers():
    found = []
    for numbers in [(1, 2), (1, 2), (2, 1), (1, 3), (2, 2)]:
        draws()
        with seeded(*numbers):
            found.append(draws())
    assert found[0] == found[1]
    for one in range(1, 5):
        for other in range(one + 1, 5):
            assert all(a != b for a, b in zip(found[one], found[other], strict=True))


def test_seeded_puts_the_generators_back():
    before = states()
    with seeded(1):
        draws()
        with seeded(2):
            draws()
    assert states() == before


def test_seeded_puts_the_generators_back_after_an_exception():
    before = states()
    with pytest.raises(RuntimeError, match="stop"), seeded(1):
        raise RuntimeError("stop")
    assert states() == before


def test_seeded_leaves_the_generators_of_devices_alone(monkeypatch):
    # It could not put those back, and those of the training process may be in use.
    touched = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", touched.append)
    with seeded(1):
        pass
    assert touched == []


def test_empty_batches_are_refused():
    with pytest.raises(ValueError, match="batch_size must be at least 1; got 0"):
        EpochBatches(6, 0)
