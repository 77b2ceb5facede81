"""The verb `study`: its list, what a study would run, runs of a file of one's own, and exit codes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from castling.cli.main import main
from castling.recipes import study_names

ROOT = Path(__file__).parents[2]
TINY = {
    "title": "Tiny",
    "question": "Does the branch help?",
    "recipe": "digits/castling",
    "baseline": "twin",
    "pictures": 1154,
    "common": {
        "model.options": {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2},
        "data.held_out": 0.2,
        "augment": {"auto_augment": None, "erasing": 0.0, "mixup": 0.0, "cutmix": 0.0},
        "training.max_steps": 2,
        "training.batch_size": 32,
        "training.workers": 0,
    },
    "variants": {"castled": None, "twin": {"set": {"model.kernel": "softmax", "training.threshold": None}}},
    "seeds": [0, 1],
}


@pytest.fixture
def tiny(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY, sort_keys=False))
    return path


def command(*arguments):
    return main(["study", *map(str, arguments)])


def test_the_list_has_every_study_with_its_runs_and_its_cost(capsys):
    assert command() == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in study_names())
    assert "question" in listed
    assert "MACs" in listed


def test_a_study_without_a_folder_is_shown(tiny, capsys):
    assert command(tiny) == 0
    shown = capsys.readouterr().out
    assert "Does the branch help?" in shown
    assert "castled" in shown
    assert "twin" in shown
    assert not list(tiny.parent.glob("*-0"))


def test_a_study_runs_and_says_what_came_out(tiny, tmp_path, capsys):
    out = tmp_path / "out"
    assert command(tiny, "--out", out, "--jobs", "0", "--test", "--json") == 0
    content = json.loads(capsys.readouterr().out)
    assert content["missing"] == {}
    (pair,) = content["differences"]["validation"]
    assert (pair["variant"], pair["other"], pair["seeds"]) == ("castled", "twin", [0, 1])
    castled = json.loads((out / "castled-1" / "certificate.json").read_text())["networks"]["castled"]
    top1 = 100 * castled["metrics"][0]["value"]
    assert content["variants"]["castled"]["validation"]["by_seed"]["1"] == pytest.approx(top1, rel=1e-4)
    assert content["variants"]["castled"]["test"]["by_seed"].keys() == {"0", "1"}
    page = (out / f"{tiny.stem}.html").read_text()
    assert "Does the branch help?" in page
    assert "data:image/png;base64," in page
    check_evaluate(out, capsys)


def check_evaluate(out, capsys):
    """The verb `evaluate` finds the same on the test pictures of a run, and others on those of validation."""
    found = {}
    for flags in ([], ["--test"]):
        assert main(["evaluate", str(out / "twin-0"), "--json", *flags]) == 0
        found[bool(flags)] = json.loads(capsys.readouterr().out)["model"]
    seen = json.loads((out / "twin-0" / "test.json").read_text())["networks"]["as trained"]
    assert found[True] == pytest.approx(seen, rel=1e-5)
    assert found[False] == pytest.approx(json.loads((out / "twin-0" / "summary.json").read_text())["model"], rel=1e-5)
    assert main(["evaluate", str(out / "twin-0"), "--test", "--answers", str(out / "answers")]) == 2
    assert "--test is not for them" in capsys.readouterr().err


def test_a_failing_run_is_named_and_the_exit_code_is_1(tiny, tmp_path, capsys):
    values = yaml.safe_load(tiny.read_text())
    values["variants"]["lost"] = {"set": {"data.source": "idx", "data.root": "/nowhere"}}
    tiny.write_text(yaml.safe_dump(values, sort_keys=False))
    assert command(tiny, "--out", tmp_path / "out", "--jobs", "0", "--only", "lost", "twin", "--seeds", "0") == 1
    said = capsys.readouterr().out
    assert "failed: lost-0: no folder /nowhere" in said
    page = (tmp_path / "out" / f"{tiny.stem}.html").read_text()
    assert "lost-0: no folder /nowhere" in page
    assert "castled-1: not yet" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["kernel"], "unknown study 'kernel': did you mean 'kernels'"),
        (["--out", "x"], "--out and --probe need the name of a study"),
        (["kernels", "--out", "x", "--only", "cosin"], "unknown variant 'cosin': did you mean 'cosine'"),
        (["kernels", "--out", "x", "--set", "training.epohcs=3"], "unknown key 'training.epohcs'"),
        (["kernels", "--out", "x", "--seeds", "1", "1"], "seeds are different whole numbers"),
        (["kernels", "--out", "x", "--test", "--set", "data.held_out=0"], "were looked at in training already"),
    ],
)
def test_what_cannot_be_run_is_said_before_it_begins(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert command(*arguments) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_tables_need_marks_and_results(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("no marks\n")
    assert command("--into", page) == 2
    assert "has no marks of a study" in capsys.readouterr().err
    page.write_text("<!-- castling study kernels: begin -->\n<!-- castling study kernels: end -->\n")
    assert command("--into", page, "--results", tmp_path) == 2
    assert "has no file kernels-*.csv" in capsys.readouterr().err


@pytest.mark.slow
def test_a_probe_measures_steps_and_trains_nothing(tiny, capsys):
    values = yaml.safe_load(tiny.read_text())
    values["common"] |= {"training.max_steps": None, "training.epochs": 2}
    tiny.write_text(yaml.safe_dump(values, sort_keys=False))
    assert command(tiny, "--probe") == 0
    shown = capsys.readouterr().out
    assert "time a run" in shown
    assert "4 runs," in shown
    assert [path.name for path in tiny.parent.iterdir()] == ["tiny.yaml"]


@pytest.mark.slow
def test_as_a_command_with_two_processes(tiny, tmp_path):
    words = [
        sys.executable,
        "-m",
        "castling",
        "study",
        str(tiny),
        "--out",
        str(tmp_path / "out"),
        "--jobs",
        "2",
        "--seeds",
        "1",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, capture_output=True, text=True, timeout=400, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert "twin-1: done" in done.stdout
    assert (tmp_path / "out" / f"{tiny.stem}.html").is_file()
    assert len(list((tmp_path / "out" / "logs").iterdir())) == 2
