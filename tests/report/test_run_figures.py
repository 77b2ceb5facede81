import math

import pytest
from run_folders import SPEED, make_run

from castling.measure.metric import Metric
from castling.report.run_data import read_run
from castling.report.run_figures import draw_cost, draw_occupancy, draw_run
from castling.training.records import StepRecord


def titles(figures):
    return [figure.title for figure in figures]


def test_every_figure_is_a_png_with_a_caption(tmp_path):
    run = read_run(make_run(tmp_path / "run", speed={"rows": SPEED}))
    figures = draw_run([run], tmp_path / "figures")
    assert titles(figures) == ["top1", "Loss", "Non-zeros in the auxiliary masks", "Cost over resolution"]
    assert [figure.path.name for figure in figures] == ["metric.png", "loss.png", "occupancy.png", "cost.png"]
    for figure in figures:
        assert figure.path.read_bytes().startswith(b"\x89PNG")
        assert figure.caption.endswith(".")


def test_what_was_not_logged_is_not_drawn(tmp_path):
    run = read_run(make_run(tmp_path / "run", "softmax"))
    with pytest.raises(ValueError, match="no occupancy"):
        draw_occupancy(run, tmp_path / "occupancy.png")
    with pytest.raises(ValueError, match="no measured speed"):
        draw_cost(run, tmp_path / "cost.png")
    assert titles(draw_run([run], tmp_path)) == ["top1", "Loss"]
    assert draw_run([read_run(make_run(tmp_path / "begun", filled=[]))], tmp_path) == []


def test_losses_that_are_not_finite_do_not_stop_the_drawing(tmp_path):
    bad = [StepRecord(step, 70, 0.0, loss, 1e-3) for step, loss in ((0, math.nan), (10, math.inf), (20, None))]
    run = read_run(make_run(tmp_path / "run", filled=[], records=bad))
    assert titles(draw_run([run], tmp_path)) == ["Loss"]


def test_a_mask_that_never_opened_is_drawn(tmp_path):
    run = read_run(make_run(tmp_path / "run", filled=[[0.0, 0.0]] * 3))
    assert draw_occupancy(run, tmp_path / "occupancy.png").is_file()


def test_names_that_matplotlib_would_interpret_are_drawn_as_they_are(tmp_path):
    runs = [read_run(make_run(tmp_path / name)) for name in ("_hidden", "$x^{", "a$b$")]
    assert len(draw_run(runs, tmp_path / "figures")) == 3


def test_the_name_of_another_tasks_metric_is_drawn_as_it_is(tmp_path):
    def error(value):
        return [Metric("error $\\frac", value, "px$_", higher_is_better=False)]

    runs = [read_run(make_run(tmp_path / name, evaluated=error)) for name in ("first", "second")]
    assert titles(draw_run(runs, tmp_path))[0] == "error $\\frac"
