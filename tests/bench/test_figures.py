from pathlib import Path

import pytest

from castling.bench.figures import draw_speedups
from castling.bench.results_file import read_rows

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def row(model, size, patch, engine="eager", speedup="2.5"):
    cells = {"model": model, "size": size, "patch": patch, "engine": engine, "threads": 2}
    return {**cells, "speedup_over_softmax": speedup, "mac_bound": "3"}


def test_figures_are_drawn_for_what_was_measured(tmp_path):
    deit = "castling_deit_tiny_patch16_224"
    rows = [row(deit, 224, 16), row(deit, 512, 16, "openvino"), row("castling_mvitv2_tiny", 224, 4)]
    rows.append(row(deit, 1024, 16, speedup=""))
    assert [path.name for path in draw_speedups(rows, tmp_path / "models-2.15.0")] == ["models-2.15.0-resolution.png"]
    rows.append(row(deit, 224, 8))
    written = draw_speedups(rows, tmp_path / "models-2.15.0")
    assert [path.name for path in written] == ["models-2.15.0-resolution.png", "models-2.15.0-patches.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)


def test_no_times_no_figures(tmp_path):
    assert draw_speedups([row("castling_levit_128", 224, 16, speedup="")], tmp_path / "x") == []


@pytest.mark.parametrize("path", sorted(RESULTS.glob("models-*.csv")), ids=lambda path: path.stem)
def test_figures_are_drawn_from_the_results_that_are_kept(path, tmp_path):
    rows = read_rows(path)
    assert rows
    assert draw_speedups(rows, tmp_path / "models")
