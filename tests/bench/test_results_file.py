import json

import pytest

from castling.bench.results_file import append_row, number_in, open_results, read_rows, time_cells, write_json
from castling.measure import Timing


def test_rows_come_back_with_their_environment(tmp_path):
    path = tmp_path / "rows.csv"
    append_row(path, {"name": "a, b", "ms": 1 / 3, "macs": 1_182_192_384, "empty": None}, "castling bench")
    append_row(path, {"name": "c", "ms": 2.0, "macs": 5, "empty": None})
    first, second = read_rows(path)
    assert [first[column] for column in ("name", "ms", "macs", "empty")] == ["a, b", "0.333333", "1182192384", ""]
    assert first["command"] == "castling bench"
    assert second["torch"]
    assert [number_in(second, column) for column in ("ms", "macs", "empty", "name", "nothing")] == [
        2.0,
        5.0,
        *[None] * 3,
    ]


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


def test_times_are_medians_with_their_quartiles_or_empty_cells():
    timing = Timing(median=0.003, lower=0.0025, upper=0.01)
    cells = {"host_ms": 3.0, "host_lower_quartile_ms": 2.5, "host_upper_quartile_ms": 10.0}
    assert time_cells("host", timing) == pytest.approx(cells)
    assert time_cells("host", None) == dict.fromkeys(cells)
