"""The verb `report`: when it measures, what it writes, and that a converted run is a run of ours."""

import json

import pytest
from run_folders import SPEED, make_run, train_run

from castling.cli import report
from castling.cli.main import main
from castling.report import run_page
from castling.report.run_data import read_run
from castling.training import RunFolder
from castling.workflows.castle_run import castle_run


@pytest.fixture
def measured(monkeypatch):
    """The folders that would have been measured; nothing is drawn either."""
    calls = []

    def measure(folder, sizes, on_size):
        calls.append(folder)
        rows = [SPEED[0] | {"size": size} for size in sorted(sizes)]
        RunFolder(folder).write_json("speed.json", {"environment": {}, "rows": rows})
        return read_run(folder).speed

    monkeypatch.setattr(report, "measure_run", measure)
    monkeypatch.setattr(run_page, "draw_run", lambda runs, folder: [])
    return calls


def command(*arguments):
    return main(["report", *map(str, arguments)])


def sizes_of(folder):
    return [row["size"] for row in read_run(folder).speed["rows"]]


@pytest.mark.slow
def test_the_verb_measures_once(measured, tmp_path, capsys):
    folder = make_run(tmp_path / "run")
    assert command(folder) == 0
    assert sizes_of(folder) == [32, 64, 128, 256]
    assert "report.html" in capsys.readouterr().out
    command(folder)
    assert len(measured) == 1
    command(folder, "--measure-again")
    command(folder, "--sizes", 16, 8)
    command(folder, "--sizes", 8, 16)
    assert len(measured) == 3
    assert sizes_of(folder) == [8, 16]


def test_the_verb_measures_nothing_where_that_is_not_wanted(measured, tmp_path):
    folder = make_run(tmp_path / "run")
    assert command(folder, "--no-speed", "--out", tmp_path / "out", "--title", "Mine") == 0
    assert command(make_run(tmp_path / "softmax", "softmax")) == 0
    assert measured == []
    assert "Mine" in (tmp_path / "out" / "report.html").read_text()
    assert not (folder / "report.html").exists()


def test_a_run_that_cannot_be_measured_yet_has_a_page(tmp_path, caplog):
    folder = make_run(tmp_path / "run")
    assert command(folder) == 0
    assert "speed is not measured" in caplog.text
    assert "has no good checkpoint" in caplog.text
    assert (folder / "report.html").exists()


def test_a_folder_that_is_no_run_is_refused(tmp_path, capsys):
    assert command(tmp_path) == 2
    assert "is no run folder" in capsys.readouterr().err


@pytest.mark.slow
def test_a_converted_run_is_measured_and_has_its_verdict(tmp_path):
    """It has the name of a plain network; it was called a softmax baseline, and its speed was skipped."""
    folder = train_run(tmp_path / "run", "converted")
    assert json.loads((folder / "network.json").read_text())["attention"] == "converted"
    certificate, castled = castle_run(folder, tolerance=100, sizes=[64])
    assert castled is not None
    assert command(folder, "--sizes", 32, 64) == 0
    assert sizes_of(folder) == [32, 64]
    page = (folder / "report.html").read_text()
    assert "Softmax baseline" not in page
    assert f'class="verdict {certificate.verdict}"' in page
    for label, name in (("Original", "original"), ("Converted", "converted"), ("Castled", "castled")):
        shown = certificate.networks[name].metrics[0].shown
        assert f'<div class="label">{label}</div><div class="value">{shown}</div>' in page
    assert "castled, 64 px" in page
    assert '<div class="label">Speed-up</div><div class="value">' in page
    assert "not measured" not in page
