import pytest
import torch

from castling.attention import ThresholdSchedule, can_empty
from castling.attention.threshold import absolute_cut


@pytest.mark.parametrize("num_tokens", [1, 16, 49, 50, 196, 4096])
@pytest.mark.parametrize(
    ("threshold", "relative"), [(0.0, False), (0.02, False), (1.0, False), (0.5, True), (1.0, True), (3.0, True)]
)
def test_can_empty_agrees_with_the_flattest_attention(threshold, relative, num_tokens):
    """Uniform attention has the smallest row maximum there is, 1/N; the mask drops what does not exceed the cut."""
    flattest = 1 / num_tokens
    assert can_empty(threshold, num_tokens, relative) == (flattest <= absolute_cut(threshold, num_tokens, relative))


def test_the_papers_threshold_needs_fifty_tokens():
    assert not can_empty(0.02, 49)
    assert can_empty(0.02, 50)


def test_can_empty_refuses_bad_values():
    with pytest.raises(ValueError, match=r"\[0, 1\].*got 1.5"):
        can_empty(1.5, 10)
    with pytest.raises(ValueError, match="got -1"):
        can_empty(-1, 10, relative=True)
    with pytest.raises(ValueError, match="got 0"):
        can_empty(0.02, 0)


def test_fixed_schedule_stays():
    assert {ThresholdSchedule("fixed", 0.05)(progress / 10) for progress in range(11)} == {0.05}


def test_step_schedule_jumps():
    schedule = ThresholdSchedule("step", 0.02, 1.0, until=0.5)
    assert [schedule(progress) for progress in (0, 0.49, 0.5, 1)] == [0.02, 0.02, 1.0, 1.0]


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_moving_schedules_rise_between_their_ends(kind):
    schedule = ThresholdSchedule(kind, 0.02, 0.5, since=0.2, until=0.8)
    values = torch.tensor([schedule(progress / 100) for progress in range(101)])
    assert (values[:21] == 0.02).all()
    assert (values[80:] == 0.5).all()
    assert (values.diff() >= 0).all()
    assert schedule(0.5) == pytest.approx(0.26)


def test_cosine_starts_and_ends_flat():
    linear, cosine = (ThresholdSchedule(kind, 0.0, 1.0) for kind in ("linear", "cosine"))
    assert cosine(0.1) < linear(0.1)
    assert cosine(0.9) > linear(0.9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "linaer"}, "unknown threshold schedule 'linaer': did you mean 'linear'"),
        ({"start": -0.1}, "got -0.1"),
        ({"since": 0.8, "until": 0.2}, "since=0.8, until=0.2"),
    ],
)
def test_bad_schedules_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        ThresholdSchedule(**arguments)
