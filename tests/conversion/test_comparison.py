import math

import pytest
import torch

from castling.conversion import comparison
from castling.conversion.comparison import Differences, same_tensors


def collected(*parts):
    differences = Differences()
    for part in parts:
        differences.add(torch.as_tensor(part))
    return differences


def test_the_median_is_that_of_all_numbers_however_they_come():
    numbers = torch.rand(1001)
    for sizes in ([1001], [1000, 1], [7] * 143):
        found = collected(*numbers.split(sizes))
        assert found.largest == float(numbers.max())
        assert found.median() == float(numbers.median())


def test_nothing_differs_by_nothing():
    for found in (Differences(), collected(torch.zeros(0))):
        assert (found.largest, found.median()) == (0.0, 0.0)


@pytest.mark.parametrize("order", [1, -1])
def test_a_number_that_is_none_is_the_largest_for_good(order):
    parts = [torch.tensor([1.0]), torch.tensor([2.0, math.nan]), torch.tensor([3.0])]
    assert math.isnan(collected(*parts[::order]).largest)


def test_of_very_many_numbers_a_regular_part_is_kept(monkeypatch):
    monkeypatch.setattr(comparison, "MOST_KEPT", 256)
    numbers = torch.rand(100_000, generator=torch.Generator().manual_seed(0))
    differences = Differences()
    for part in numbers.split(100):
        differences.add(part)
        assert sum(map(len, differences._kept)) <= 256
    assert differences.largest == float(numbers.max())  # of all, not of the part
    assert differences.median() == pytest.approx(0.5, abs=0.1)


def test_the_part_that_is_kept_is_of_all_times_alike(monkeypatch):
    """Rising numbers: were the first or the last ones preferred, their median would be off."""
    monkeypatch.setattr(comparison, "MOST_KEPT", 256)
    found = collected(*torch.arange(65536.0).split(512))
    assert found.median() == pytest.approx(32768, rel=0.02)


def test_one_large_tensor_is_thinned_out_as_well(monkeypatch):
    monkeypatch.setattr(comparison, "MOST_KEPT", 256)
    found = collected(torch.arange(65536.0))
    assert sum(map(len, found._kept)) <= 256
    assert found.median() == pytest.approx(32768, rel=0.02)


def test_state_dicts_are_equal_in_keys_order_and_every_bit():
    state = {"a": torch.tensor([0.0, 1.0]), "b": torch.ones(2)}
    assert same_tensors(state, {name: value.clone() for name, value in state.items()})
    assert not same_tensors(state, {"b": state["b"], "a": state["a"]})
    assert not same_tensors(state, {"a": state["a"]})
    assert not same_tensors(state, {**state, "b": torch.ones(3)})
    assert not same_tensors(state, {**state, "b": torch.tensor([1.0, 1.0 + 1e-7])})
