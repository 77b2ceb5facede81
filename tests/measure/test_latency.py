import pytest

from castling.measure import Timing, latency, time_interleaved


def test_candidates_take_turns_after_a_warm_up():
    calls = []
    time_interleaved({name: lambda name=name: calls.append(name) for name in "ab"}, repeats=3, min_seconds=0, warmup=2)
    assert "".join(calls) == "aabb" + "ab" * 3


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([9.0, 1.0, 4.0, 2.0, 3.0], Timing(median=3.0, lower=2.0, upper=4.0)),
        ([1.0, 2.0], Timing(median=1.5, lower=1.25, upper=1.75)),
        ([7.0], Timing(median=7.0, lower=7.0, upper=7.0)),
    ],
)
def test_a_candidate_has_the_median_and_the_quartiles_of_its_rounds(seconds, expected, monkeypatch):
    left = list(seconds)
    monkeypatch.setattr(latency, "_seconds_per_call", lambda run, min_seconds: left.pop(0))
    assert time_interleaved({"a": lambda: None}, repeats=len(seconds)) == {"a": expected}


def test_no_repeats_is_an_error():
    with pytest.raises(ValueError, match="got 0"):
        time_interleaved({}, repeats=0)


def test_short_calls_take_turns_more_often():
    calls = []
    time_interleaved({"a": lambda: calls.append("a")}, repeats=2, min_seconds=0.0, total_seconds=60.0)
    assert len(calls) == 2 + 100
