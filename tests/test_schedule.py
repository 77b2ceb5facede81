import pytest

from castling.attention import ThresholdSchedule
from castling.conversion import BlendSchedule
from castling.schedule import Schedule
from castling.settings import from_mapping, to_mapping


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("fixed", [4.0, 4.0, 4.0, 4.0, 4.0]),
        ("step", [4.0, 4.0, 4.0, 4.0, -4.0]),
        ("linear", [4.0, 4.0, 2.0, 0.0, -4.0]),
        ("cosine", [4.0, 4.0, 2.8284271, 0.0, -4.0]),
    ],
)
def test_a_number_moves_between_its_two_points(kind, expected):
    schedule = Schedule(kind, 4.0, -4.0, since=0.2, until=0.6)
    assert [schedule(progress) for progress in (0, 0.2, 0.3, 0.4, 0.6)] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("kind", "defaults", "wrong"),
    [
        (ThresholdSchedule, ("fixed", 0.02, 1.0), {"end": -1}),
        (BlendSchedule, ("linear", 0.0, 1.0), {"end": 2}),
    ],
)
def test_siblings_have_their_own_defaults_and_range_and_are_read_strictly(kind, defaults, wrong):
    schedule = from_mapping(kind, {"until": "0.5"}, "training.schedule")
    assert (schedule.kind, schedule.start, schedule.end) == defaults
    assert from_mapping(kind, to_mapping(schedule)) == schedule
    with pytest.raises(ValueError, match=r"training\.schedule: .*got (-1|2)"):
        from_mapping(kind, wrong, "training.schedule")
    with pytest.raises(ValueError, match=r"unknown key 'training\.schedule\.untill'.* Legal: 'kind', 'start', 'end', "):
        from_mapping(kind, {"untill": 1}, "training.schedule")


def test_neither_sibling_is_the_other():
    assert not issubclass(BlendSchedule, ThresholdSchedule)
    assert Schedule("fixed", -7.0, 9.0)(0.3) == -7.0  # a plain number has no range
