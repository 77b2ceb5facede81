import dataclasses
import math

import pytest
from run_folders import FILLED, SPEED, certificate, make_run

from castling.measure.metric import Metric
from castling.report.run_data import occupancy_trajectories, read_run
from castling.report.run_text import (
    MISSING,
    describe_cost,
    describe_loss,
    describe_metric,
    describe_occupancy,
    loss_between,
    num_tokens_at,
    percent,
    run_labels,
    shown,
    verdict,
)
from castling.training.records import StepRecord


@pytest.fixture
def run(tmp_path):
    return read_run(make_run(tmp_path / "castling", certificate=certificate(), speed={"rows": SPEED}))


def test_numbers_that_are_not_there_are_a_dash():
    assert percent(None) == percent(math.nan) == shown(None) == MISSING


def test_a_loss_has_the_unit_of_its_metric_and_no_negative_zero():
    assert loss_between(Metric("top1", 0.5), Metric("top1", 0.5)) == "0.00 points"
    errors = [Metric("error", value, "px", higher_is_better=False) for value in (1.0, 1.5)]
    assert loss_between(*errors) == "0.50 px"
    assert loss_between(*errors[::-1]) == "-0.50 px"
    assert loss_between(Metric("loss", 1.0, ""), Metric("loss", 0.5, "")) == "0.50"


@pytest.mark.parametrize(
    ("said", "colour", "headline"),
    [
        ("free", "free", "Castling is free"),
        ("cheap", "cheap", "Castling is cheap"),
        ("unused", "unused", "The branch was never used"),
        ("not yet", "not-yet", "Not yet"),
    ],
)
def test_the_verdict_in_words(tmp_path, said, colour, headline):
    found = verdict(read_run(make_run(tmp_path / "run", certificate=certificate(said))))
    assert found[:2] == (colour, headline)
    assert (
        "top1 goes from 98.12 % to 97.79 %: 0.33 points lost where 0.5 are tolerated, and 98.8 % of 360 answers stay "
        "the same." in found[2]
    )


@pytest.mark.parametrize(
    ("said", "headline"),
    [
        ("free", "Converted for free"),
        ("cheap", "Converted at a small price"),
        ("unused", "The branch was never used"),
        ("not yet", "Not yet"),
    ],
)
def test_the_verdict_of_a_converted_run_is_over_its_original(tmp_path, said, headline):
    """1.21 points from the original, though only 0.33 from the converted network."""
    made = make_run(tmp_path / "run", "converted", certificate=certificate(said, original=0.99))
    _, found, sentence = verdict(read_run(made))
    assert found == headline
    assert "from 99.00 % to 97.79 %: 1.21 points lost" in sentence
    assert "95.0 % of 360 answers" in sentence


def test_what_stays_the_same_is_said_as_such(tmp_path):
    content = certificate()
    content["networks"]["with branch"] = content["networks"]["castled"]
    sentence = verdict(read_run(make_run(tmp_path / "run", certificate=content)))[2]
    assert "top1 stays at 97.79 %, and all 360 answers stay the same" in sentence


def test_without_a_certificate_there_is_no_verdict(tmp_path):
    going = read_run(make_run(tmp_path / "going"))
    assert verdict(going)[:2] == ("none", "No certificate yet")
    assert "may still be going on" in verdict(going)[2]
    finished = dataclasses.replace(going, summary={"status": "finished"})
    assert "It has finished." in verdict(finished)[2]


def test_only_softmax_has_nothing_to_castle(tmp_path):
    said = {name: verdict(read_run(make_run(tmp_path / name, name)))[1] for name in ("softmax", "converted")}
    assert said == {"softmax": "Softmax baseline", "converted": "No certificate yet"}


def test_where_the_curves_end(run, tmp_path):
    softmax = read_run(make_run(tmp_path / "softmax", "softmax"))
    assert describe_metric([run, softmax]) == (
        "The run stands at 90.00 % after 5 epochs with the branch and 90.00 % castled. "
        "The softmax baseline stands at 90.00 % after 5 epochs."
    )


def test_a_converted_network_is_not_said_to_have_a_branch(tmp_path):
    converted = read_run(make_run(tmp_path / "run", "converted"))
    said = "The run stands at 90.00 % after 5 epochs as converted and 90.00 % castled."
    assert describe_metric([converted]) == said


def test_metrics_of_other_tasks_have_their_own_unit(tmp_path):
    def error(value):
        return [Metric("error", value, "px", higher_is_better=False)]

    other = read_run(make_run(tmp_path / "run", evaluated=error))
    assert "The run stands at 0.9 px after 5 epochs" in describe_metric([other])


def test_how_the_masks_opened_and_closed(run):
    caption = describe_occupancy(occupancy_trajectories(run))
    assert "opened in 2 of 2 layers, most in layer 0: 6.0 % in its fullest head at step 20" in caption
    assert "From step 30 on every logged mask is empty" in caption


def test_a_branch_that_never_opened_says_so(tmp_path):
    made = read_run(make_run(tmp_path / "run", filled=[[0.0, 0.0]] * 3))
    assert describe_occupancy(occupancy_trajectories(made)) == (
        "The branch never opened: every mask was empty at each of the 3 logged steps."
    )


def test_a_branch_that_is_still_open_says_how_much(tmp_path):
    made = read_run(make_run(tmp_path / "run", filled=FILLED[:3]))
    assert "the fullest head still keeps 6.0 %" in describe_occupancy(occupancy_trajectories(made))


def test_losses_that_are_not_finite_are_left_out(tmp_path):
    bad = [StepRecord(50, 70, 3.0, math.nan, 1e-3, skipped=3), StepRecord(60, 70, 3.5, None, 1e-3, skipped=4)]
    caption = describe_loss(read_run(make_run(tmp_path / "run", records=bad)))
    assert "It begins at 2 and ends at 0.4 after 40 steps. 4 steps were skipped" in caption
    none = read_run(make_run(tmp_path / "none", filled=[], records=bad))
    assert describe_loss(none) == "No finite loss was logged."


def test_the_cost_is_told_at_the_largest_size(run):
    assert "At 256 px (4,096 tokens) it needs 10.0x fewer MACs and is 7.3x faster." in describe_cost(run)
    slower = dataclasses.replace(run, speed={"rows": SPEED[:1]})
    assert "At 32 px (64 tokens) it needs 1.5x fewer MACs and is 2.0x slower." in describe_cost(slower)


def test_tokens_are_those_of_the_certificate_scaled(run, tmp_path):
    assert [num_tokens_at(run, size) for size in (32, 48, 256)] == [64, 144, 4096]
    assert num_tokens_at(read_run(make_run(tmp_path / "run")), 32) is None


def test_runs_of_one_name_are_told_apart(tmp_path):
    runs = [read_run(make_run(tmp_path / path)) for path in ("first/run", "second/run", "third/other")]
    assert run_labels(runs) == ["first/run", "second/run", "other"]
