import pytest
from run_folders import FILLED, LAYERS, certificate, make_run, metrics

from castling.measure.metric import Metric
from castling.report.run_data import occupancy_trajectories, read_run
from castling.training.records import EvalRecord, StepRecord


def test_what_training_wrote_is_read_with_its_types(tmp_path):
    folder = make_run(tmp_path / "run", summary={"status": "finished"}, environment={"processor": "Abacus", "cores": 2})
    run = read_run(folder)
    assert run.name == "run"
    assert run.image_size == 32
    assert run.recipe.settings.model.name == "castling_deit_tiny_patch16_224"
    assert run.config_text == (folder / "config.yaml").read_text()
    assert [type(record) for record in run.steps] == [StepRecord] * 5
    assert [type(record) for record in run.evals] == [EvalRecord] * 5
    assert run.evals[-1].castled == metrics(0.9)
    assert run.environment == {"processor": "Abacus", "cores": "2"}
    assert run.summary == {"status": "finished"}
    assert (run.certificate, run.speed, run.num_quarantined) == (None, None, 0)


@pytest.mark.parametrize(
    ("attention", "baseline", "converted"),
    [("castling", False, False), ("softmax", True, False), ("converted", False, True)],
)
def test_what_a_run_is_comes_from_its_network_not_from_a_name(tmp_path, attention, baseline, converted):
    """A converted network has the name of the plain one that it was."""
    run = read_run(make_run(tmp_path / "run", attention))
    assert (run.is_baseline, run.is_converted) == (baseline, converted)


def test_unreadable_pictures_are_counted(tmp_path):
    folder = make_run(tmp_path / "run")
    (folder / "quarantine.jsonl").write_text('{"name": "a.png", "error": "broken", "split": "train"}\n')
    assert read_run(folder).num_quarantined == 1


def test_the_certificate_counts_before_the_latest_evaluation(tmp_path):
    logged = read_run(make_run(tmp_path / "logged"))
    certified = read_run(make_run(tmp_path / "certified", certificate=certificate()))
    assert [logged.score(side).value for side in ("model", "castled")] == pytest.approx([0.9, 0.9])
    assert [certified.score(side).value for side in ("model", "castled")] == [0.9812, 0.9779]
    assert logged.original_score() is certified.original_score() is None


def test_of_three_networks_the_first_is_the_original(tmp_path):
    run = read_run(make_run(tmp_path / "run", "converted", certificate=certificate(original=0.99)))
    assert run.original_score() == Metric("top1", 0.99)
    assert [run.score(side).value for side in ("model", "castled")] == [0.9812, 0.9779]


def test_a_run_that_has_just_begun_has_no_scores(tmp_path):
    run = read_run(make_run(tmp_path / "run", filled=[]))
    assert (run.steps, run.evals, run.metric) == ((), (), None)
    assert run.score("castled") is None
    softmax = read_run(make_run(tmp_path / "softmax", "softmax"))
    assert softmax.score("castled") is None


def test_the_trajectory_of_nonzeros(tmp_path):
    first, second = occupancy_trajectories(read_run(make_run(tmp_path / "run")))
    assert (first.layer, second.layer) == LAYERS
    assert first.steps == (0, 10, 20, 30, 40)
    assert first.mean == pytest.approx([sum(heads) / 2 for heads in FILLED])
    assert (first.low[2], first.high[2]) == (0.02, 0.06)


def test_a_line_that_is_cut_short_is_left_out_at_the_end_only(tmp_path):
    folder = make_run(tmp_path / "run")
    with (folder / "log.jsonl").open("a") as log:
        log.write('{"kind": "step", "st')
    assert len(read_run(folder).steps) == 5
    with (folder / "log.jsonl").open("a") as log:
        log.write('\n{"kind": "note"}\n')
    with pytest.raises(ValueError, match=r"log\.jsonl, line 11 is no record"):
        read_run(folder)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"kind": "note"}', "of the kind 'step' or 'eval'; got 'note'"),
        ('{"kind": "step", "step": 1}', "lacks 'num_steps'"),
        ('{"kind": "eval", "step": 1, "epoch": 1.0}', "metrics must be a list"),
        ('{"kind": "eval", "step": 1, "epoch": 1.0, "metrics": []}', "lacks 'model'"),
        ('{"kind": "eval", "step": [1], "epoch": 1.0, "metrics": [], "model": {}, "castled": null}', "step must be a"),
        ("[" * 5000, "nested too deeply"),
    ],
)
def test_a_line_of_another_kind_is_named(tmp_path, line, message):
    folder = make_run(tmp_path / "run", filled=[])
    (folder / "log.jsonl").write_text(line + "\n")
    with pytest.raises(ValueError, match=f"log.jsonl, line 1 is no record: .*{message}"):
        read_run(folder)


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"is no run folder: it has no config\.yaml"):
        read_run(tmp_path)
    folder = make_run(tmp_path / "run", certificate=[1])
    with pytest.raises(ValueError, match=r"certificate\.json must hold an object; got list"):
        read_run(folder)
    (folder / "certificate.json").write_text("{")
    with pytest.raises(ValueError, match=r"certificate\.json is not JSON"):
        read_run(folder)
    (folder / "certificate.json").unlink()
    (folder / "network.json").unlink()
    with pytest.raises(ValueError, match=r"cannot read .*network\.json"):
        read_run(folder)
