import json
import math
import pickle

import pytest

from castling.measure.metric import Metric, as_values, describe_metrics, with_values

ACCURACY = Metric("top1", 0.98312)
ERROR = Metric("error", 1.25, "px", higher_is_better=False)
LOSS = Metric("loss", 0.000123456, "", higher_is_better=False)


@pytest.mark.parametrize(
    ("metric", "shown", "unit"),
    [
        (ACCURACY, "98.31 %", "points"),
        (ERROR, "1.25 px", "px"),
        (LOSS, "0.0001235", ""),
        (Metric("top1", math.nan), "nan %", "points"),
    ],
)
def test_values_are_shown_with_their_unit(metric, shown, unit):
    assert metric.shown == shown
    assert metric.difference_unit == unit


def test_percentages_lose_points_and_others_lose_in_their_unit():
    assert ACCURACY.lost_by(Metric("top1", 0.97312)) == pytest.approx(1.0)
    assert ERROR.lost_by(Metric("error", 3.25, "px", higher_is_better=False)) == pytest.approx(2.0)


def test_what_is_lost_follows_the_direction():
    """A rise is a gain where higher is better, and a loss where lower is."""
    for higher_is_better, sign in ((True, -1), (False, 1)):
        before, after = (Metric("m", value, "", higher_is_better) for value in (1.0, 1.5))
        assert before.lost_by(after) == sign * 0.5
        assert after.lost_by(before) == -sign * 0.5
        assert (after.rank > before.rank) == higher_is_better


def test_a_value_that_is_no_number_is_never_within_a_tolerance():
    broken = Metric("top1", math.nan)
    assert not ACCURACY.lost_by(broken) <= 100
    assert not broken.lost_by(ACCURACY) <= 100


def test_logs_hold_the_values_apart_from_what_they_are():
    metrics = [ERROR, ACCURACY, LOSS]
    values, described = json.loads(json.dumps([as_values(metrics), describe_metrics(metrics)]))
    assert values == {"error": 1.25, "top1": 0.98312, "loss": 0.000123456}
    assert with_values(described, values) == metrics


def test_the_order_is_that_of_the_description_and_a_value_that_was_not_logged_is_left_out():
    described = describe_metrics([ERROR, ACCURACY, LOSS])
    assert with_values(described, {"loss": 0.5, "error": 2.0}) == [
        Metric("error", 2.0, "px", higher_is_better=False),
        Metric("loss", 0.5, "", higher_is_better=False),
    ]


def test_a_metric_goes_from_process_to_process():
    assert pickle.loads(pickle.dumps(ERROR)) == ERROR


@pytest.mark.parametrize("name", [["loss"], {}, 1, None])
def test_a_metric_of_a_log_has_a_text_for_a_name(name):
    with pytest.raises(ValueError, match=r"metrics\.name must be text; got "):
        with_values([{"name": name, "unit": ""}], {"loss": 0.5})
