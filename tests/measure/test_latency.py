import pytest

from castling.measure import time_interleaved


def test_candidates_take_turns_after_a_warm_up():
    calls = []
    time_interleaved({name: lambda name=name: calls.append(name) for name in "ab"}, repeats=3, min_seconds=0, warmup=2)
    assert "".join(calls) == "aabb" + "ab" * 3


def test_summary_of_repeats():
    timing = time_interleaved({"a": lambda: sum(range(1000))}, repeats=5, min_seconds=0)["a"]
    assert 0 < timing.best <= timing.median
    assert timing.spread >= 0


def test_no_repeats_is_an_error():
    with pytest.raises(ValueError, match="got 0"):
        time_interleaved({}, repeats=0)


def test_short_calls_take_turns_more_often():
    calls = []
    time_interleaved({"a": lambda: calls.append("a")}, repeats=2, min_seconds=0.0, total_seconds=60.0)
    assert len(calls) == 2 + 100
