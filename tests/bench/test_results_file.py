import json
from pathlib import Path

import pytest

from castling.bench.figures import draw_speedups
from castling.bench.results_file import append_row, number, open_results, read_rows, write_json


def test_rows_come_back_with_their_environment(tmp_path):
    path = tmp_path / "rows.csv"
    append_row(path, {"name": "a, b", "ms": 1 / 3, "macs": 1_182_192_384, "empty": None}, "castling bench")
    append_row(path, {"name": "c", "ms": 2.0, "macs": 5, "empty": None})
    first, second = read_rows(path)
    assert [first[column] for column in ("name", "ms", "macs", "empty")] == ["a, b", "0.333333", "1182192384", ""]
    assert first["command"] == "castling bench"
    assert second["torch"]
    assert [number(second, column) for column in ("ms", "macs", "empty", "name", "nothing")] == [2.0, 5.0, *[None] * 3]


def test_what_a_row_says_of_its_threads_is_kept(tmp_path):
    written = append_row(tmp_path / "rows.csv", {"threads": 99})
    assert written["threads"] == "99"


def test_json_has_numbers_and_leaves_texts_alone(tmp_path):
    rows = [{"ms": "0.5", "macs": "7", "empty": "", "model": "a", "commit": "12345e678901", "threads": "2"}]
    content = json.loads(write_json(tmp_path / "rows.csv", rows, more=[1]).read_text())
    (row,) = content["rows"]
    assert list(row.values()) == [0.5, 7, None, "a", "12345e678901", 2]
    assert content["more"] == [1]
    assert {"environment", "command"} <= set(content)


def test_rows_of_other_columns_are_refused_and_change_nothing(tmp_path):
    path = tmp_path / "rows.csv"
    append_row(path, {"a": 1})
    before = path.read_text()
    with pytest.raises(ValueError, match=r"other columns .*'a', 'b'"):
        append_row(path, {"b": 1})
    assert path.read_text() == before


def test_a_line_that_was_cut_off_does_no_harm(tmp_path):
    path = tmp_path / "rows.csv"
    append_row(path, {"a": 1, "b": 2})
    with path.open("a") as file:
        file.write("3")
    append_row(path, {"a": 5, "b": 6})
    assert [(row["a"], row["b"]) for row in read_rows(path)] == [("1", "2"), ("5", "6")]


def test_nothing_is_overwritten_and_the_newest_file_is_gone_on_with(tmp_path):
    path = open_results(tmp_path / "new", "models")
    assert path.parent.is_dir()
    assert open_results(path.parent, "models", resume=True) == path
    path.touch()
    with pytest.raises(ValueError, match="is there already; go on with it with --resume"):
        open_results(path.parent, "models")
    later = path.with_name(path.name[: -len("2000-01-01.csv")] + "9999-01-01.csv")
    later.touch()
    path.with_name("models-other-2.0-9999-02-01.csv").touch()
    assert open_results(path.parent, "models", resume=True) == later


def test_no_file_has_no_rows(tmp_path):
    assert read_rows(tmp_path / "none.csv") == []


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
    assert draw_speedups([row("castling_levit_128", 224, 16, speedup="")], Path(tmp_path / "x")) == []
