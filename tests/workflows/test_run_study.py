"""A study run: what is trained, what is kept, what is written, and that one failure stops no other."""

import csv
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from castling.bench.results_file import read_rows
from castling.bench.study import parse_study
from castling.measure.plain_json import read_object
from castling.report.study_table import study_markdown
from castling.training import RunFolder
from castling.workflows import study_page, study_processes
from castling.workflows.study import run_study, study_runs
from castling.workflows.study_page import recorded_study, study_data, study_data_of, write_tables
from castling.workflows.study_processes import StudyInterrupted, trained_share

TINY = {
    "title": "Tiny",
    "question": "Does the branch help?",
    "recipe": "digits/castling",
    "baseline": "twin",
    "common": {
        "model.options": {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2},
        "data.held_out": 0.2,
        "augment": {"auto_augment": None, "erasing": 0.0, "mixup": 0.0, "cutmix": 0.0},
        "training.max_steps": 3,
        "training.batch_size": 32,
        "training.log_every": 1,
        "training.workers": 0,
    },
    "variants": {
        "castled": {"note": "as the paper has it", "set": {"training.threshold.start": 0.01}},
        "twin": {"set": {"model.kernel": "softmax", "training.threshold": None}},
    },
    "seeds": [0, 1],
}


def tiny(**changes):
    return parse_study({**TINY, **changes}, "tiny")


def failing():
    """A study whose first variant finds no data."""
    lost = {"lost": {"set": {"data.source": "idx", "data.root": "/nowhere"}}}
    return tiny(variants={**lost, **TINY["variants"]}, seeds=[0])


def times_of(out):
    return {file.parent.name: file.stat().st_mtime_ns for file in sorted(out.glob("*/summary.json"))}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A study that ran to its end in this process, to read only."""
    out = tmp_path_factory.mktemp("study")
    return out, run_study(tiny(), out, jobs=0)


def test_every_variant_is_trained_with_every_seed_and_castled(finished):
    out, result = finished
    assert (result.done, result.failed) == (["castled-0", "twin-0", "castled-1", "twin-1"], {})
    for name in result.done:
        run = RunFolder(out / name)
        assert run.recipe().seed == int(name[-1])
        assert run.summary()["steps"] == 3
        assert run.summary()["castled"] is None or read_object(out / name / "certificate.json")["verdict"]
    assert (out / "castled-0" / "castled" / "model.safetensors").is_file()


def test_a_row_for_every_network(finished):
    out, result = finished
    rows = read_rows(result.rows)
    assert [(row["variant"], row["seed"], row["network"]) for row in rows] == [
        ("castled", "0", "with branch"),
        ("castled", "0", "castled"),
        ("twin", "0", "as trained"),
        ("castled", "1", "with branch"),
        ("castled", "1", "castled"),
        ("twin", "1", "as trained"),
    ]
    assert {row["split"] for row in rows} == {"validation"}
    for row in rows:
        run = RunFolder(out / f"{row['variant']}-{row['seed']}")
        side = "castled" if row["network"] == "castled" else "model"
        assert float(row["top1"]) == pytest.approx(run.summary()[side]["top1"], rel=1e-5)
        assert row["steps"] == "3"
        assert row["commit"] == read_object(run.path / "environment.json")["commit"]
        assert int(row["macs"]) > 0
        assert int(row["parameters"]) == run.network()["parameters"]
    assert {row["verdict"] for row in rows if row["variant"] == "castled"} <= {"free", "cheap", "unused", "not yet"}


def test_curves_have_every_evaluation_and_how_full_masks_were(finished):
    out, result = finished
    rows = read_rows(result.curves)
    assert len(rows) == 6  # one evaluation each, of two networks where there is a branch
    (record,) = RunFolder(out / "castled-1").evals()
    (row,) = [row for row in rows if (row["variant"], row["seed"], row["network"]) == ("castled", "1", "castled")]
    assert float(row["top1"]) == pytest.approx(record.castled[0].value, rel=1e-5)
    assert float(row["fullest_mask"]) == pytest.approx(max(record.occupancy["blocks.0.attn"]), rel=1e-5)
    assert row["masks"].startswith("blocks.0.attn=")
    assert all(row["fullest_mask"] == "" for row in rows if row["variant"] == "twin")


def test_another_metric_can_be_compared(finished):
    out, result = finished
    found = {
        metric: study_data(tiny(metric=metric), out, result.rows, result.curves, {}) for metric in ("loss", "top5")
    }
    (castled, _) = found["loss"].variants
    with_branch, without = read_object(out / "castled-0" / "certificate.json")["networks"].values()
    losses = [network["metrics"][2]["value"] for network in (with_branch, without)]
    assert castled.scores[0] == pytest.approx(losses[1], rel=1e-5)
    assert castled.lost[0] == pytest.approx(losses[1] - losses[0], abs=1e-4)
    assert (found["loss"].metric.higher_is_better, found["top5"].metric.unit) == (False, "%")
    with pytest.raises(ValueError, match="unknown metric 'top6': did you mean 'top5'"):
        study_data(tiny(metric="top6"), out, result.rows, result.curves, {})


def test_recorded_rows_are_enough_for_tables(finished, tmp_path):
    out, result = finished
    newest = Path(shutil.copy(result.rows, tmp_path))
    text = newest.read_text()
    newest.write_text(text.replace("castled,1,", "castled,7,"))
    found = study_data_of(tiny(), read_rows(newest), [])
    whole = study_data(tiny(), out, result.rows, result.curves, {})
    assert found.variants[0].scores == {0: whole.variants[0].scores[0], 7: whole.variants[0].scores[1]}
    assert found.metric == whole.metric
    with pytest.raises(ValueError, match=r"has no file kernels-\*\.csv: castling study kernels --out DIR writes one"):
        recorded_study("kernels", tmp_path)


def test_a_table_is_written_from_the_newest_rows(finished, tmp_path, monkeypatch):
    _, result = finished
    monkeypatch.setattr(study_page, "load_study", lambda name: tiny())
    shutil.copy(result.rows, tmp_path)
    (tmp_path / "tiny-other_cpu-2.0-2020-01-01.csv").write_text("variant\n")  # an older one, which does not count
    (tmp_path / "tiny_curves-other_cpu-2.0-2090-01-01.csv").write_text("variant\n")  # of another study
    page = tmp_path / "page.md"
    page.write_text("<!-- castling study tiny: begin -->\nold\n<!-- castling study tiny: end -->\nmore\n")
    write_tables(page, tmp_path)
    data = recorded_study("tiny", tmp_path)
    assert page.read_text() == (
        f"<!-- castling study tiny: begin -->\n{study_markdown(data)}\n<!-- castling study tiny: end -->\nmore\n"
    )
    assert "| `castled` | as the paper has it |" in page.read_text()


def test_what_is_done_is_kept_and_what_is_not_goes_on(finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "study")
    out = tmp_path / "study"
    (out / "castled-1" / "certificate.json").unlink()
    shutil.rmtree(out / "twin-1")
    rows_file = out / finished[1].rows.name
    *others, last = rows_file.read_text().splitlines()
    twin = last.split(",")
    twin[6] = "999"  # its seconds: it was another training that took longer
    rows_file.write_text("\n".join([*others, ",".join(twin)]) + "\n")
    before, seen = times_of(out), []
    result = run_study(tiny(), out, jobs=0, watch=lambda run, state, share: seen.append((run.name, state)))
    assert not result.failed
    assert {name: time for name, time in times_of(out).items() if name != "twin-1"} == before
    assert (out / "castled-1" / "certificate.json").is_file()
    assert list(dict.fromkeys(seen)) == [
        *((name, "done") for name in ("castled-0", "twin-0", "castled-1")),
        ("twin-1", "running"),
        ("twin-1", "done"),
    ]
    rows = read_rows(result.rows)
    assert len(rows) == 7  # the run that was trained again has a row of its own, behind the old one
    assert [row["variant"] for row in rows].count("castled") == 4


def test_the_test_pictures_are_looked_at_once_and_on_demand(finished, tmp_path, monkeypatch):
    shutil.copytree(finished[0], tmp_path / "study")
    out = tmp_path / "study"
    result = run_study(tiny(), out, jobs=0, test=True)
    rows = [row for row in read_rows(result.rows) if row["split"] == "test"]
    assert len(rows) == 6
    seen = read_object(out / "castled-0" / "test.json")["networks"]
    assert float(rows[1]["top1"]) == pytest.approx(seen["castled"]["top1"], rel=1e-5)
    monkeypatch.setattr(study_processes, "do_work", None)  # nothing is left to do
    again = run_study(tiny(), out, jobs=0, test=True)
    assert read_rows(again.rows) == read_rows(result.rows)


def test_a_test_that_training_saw_is_refused(tmp_path):
    common = {**TINY["common"], "data.held_out": 0.0}
    with pytest.raises(ValueError, match="were looked at in training already"):
        run_study(tiny(common=common), tmp_path, jobs=0, test=True)
    assert not list(tmp_path.glob("*-0"))


def test_a_failing_run_stops_no_other(tmp_path):
    result = run_study(failing(), tmp_path, jobs=0)
    assert result.done == ["castled-0", "twin-0"]
    assert result.failed == {"lost-0": "no folder /nowhere"}
    assert {row["variant"] for row in read_rows(result.rows)} == {"castled", "twin"}


def test_a_run_of_other_settings_is_left_alone(finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "study")
    common = {**TINY["common"], "training.batch_size": 16}
    result = run_study(tiny(common=common), tmp_path / "study", only=["twin"], seeds=[0], jobs=0)
    assert "holds a run of other settings: training.batch_size is 16, and there 32" in result.failed["twin-0"]


def test_some_variants_and_seeds(tmp_path):
    runs = study_runs(tiny(), tmp_path, ["twin"], [5, 7])
    assert [(run.name, run.recipe.seed) for run in runs] == [("twin-5", 5), ("twin-7", 7)]
    with pytest.raises(ValueError, match="unknown variant 'twins': did you mean 'twin'"):
        study_runs(tiny(), tmp_path, ["twins"])
    with pytest.raises(ValueError, match="seeds are different whole numbers from 0 on"):
        study_runs(tiny(), tmp_path, seeds=[1, 1])
    with pytest.raises(ValueError, match="jobs are processes, 0 or more; got -1"):
        run_study(tiny(), tmp_path, jobs=-1)


def test_an_interrupted_study_goes_on(tmp_path):
    """A signal in the middle of the second run: it is saved, and the next call ends both."""

    def interrupt(run, state, share):
        if run.name == "twin-0" and share < 0.5:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(StudyInterrupted) as caught:
        run_study(tiny(), tmp_path, jobs=0, seeds=[0], watch=interrupt)
    assert caught.value.signum == signal.SIGTERM
    assert 0 < trained_share(tmp_path / "twin-0") < 1
    begun = times_of(tmp_path)
    assert list(begun) == ["castled-0"]
    result = run_study(tiny(), tmp_path, jobs=0, seeds=[0])
    assert result.done == ["castled-0", "twin-0"]
    assert times_of(tmp_path)["castled-0"] == begun["castled-0"]
    events = (tmp_path / "twin-0" / "events.jsonl").read_text()
    assert "resumed" in events


@pytest.mark.slow
def test_several_processes_do_the_same(finished, tmp_path):
    """Of one thread each: the same rows as one process of one thread, to rounding."""
    seen = []
    result = run_study(
        tiny(), tmp_path, seeds=[0], jobs=2, watch=lambda run, state, share: seen.append((run.name, state))
    )
    assert sorted(result.done) == ["castled-0", "twin-0"]
    assert ("castled-0", "running") in seen
    rows = {(row["variant"], row["seed"], row["network"]): row for row in read_rows(result.rows)}
    for row in [row for row in read_rows(finished[1].rows) if row["seed"] == "0"]:
        assert float(rows[row["variant"], row["seed"], row["network"]]["loss"]) == pytest.approx(
            float(row["loss"]), abs=1e-3
        )
    assert {row["threads"] for row in rows.values()} == {"1"}


@pytest.mark.slow
def test_a_failing_process_says_why(tmp_path):
    result = run_study(failing(), tmp_path, only=["lost", "twin"], jobs=2)
    assert result.done == ["twin-0"]
    assert result.failed["lost-0"].startswith("no folder /nowhere")
    assert str(tmp_path / "logs" / "lost-0.txt") in result.failed["lost-0"]


@pytest.mark.slow
def test_a_study_that_is_told_to_stop_saves_its_runs_and_goes_on(tmp_path):
    """As people do it: the command, a signal to its process alone once the first run trains, and the command again."""
    values = {**TINY, "seeds": [0], "common": {**TINY["common"], "training.max_steps": 150, "training.epochs": 50}}
    file = tmp_path / "slow.yaml"
    file.write_text(yaml.safe_dump(values, sort_keys=False))
    out = tmp_path / "out"
    words = [sys.executable, "-m", "castling", "study", str(file), "--out", str(out), "--only", "castled"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    deadline = time.monotonic() + 120
    while trained_share(out / "castled-0") == 0 and time.monotonic() < deadline:
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM, said
    assert "the same command goes on" in said
    assert 0 < trained_share(out / "castled-0") < 1
    assert not (out / "castled-0" / "lock.json").exists()
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True)
    assert "castled-0: done" in done.stdout
    (path,) = out.glob("slow-*.csv")
    with path.open() as content:
        assert [row["steps"] for row in csv.DictReader(content)] == ["150", "150"]
