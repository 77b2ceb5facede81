"""What a task shows is drawn, whatever its kind; tables and bars say their numbers."""

import math

import numpy as np
import pytest
from PIL import Image

from castling.report.run_examples import draw_exhibit
from castling.tasks.exhibits import Bars, Curves, Gallery, Heatmap


def table(values, rows=None, columns=None):
    rows = rows or [f"row {number}" for number in range(len(values))]
    columns = columns or [f"column {number}" for number in range(len(values[0]))]
    return Heatmap("table", "A table", "Of numbers.", "rows", "columns", rows, columns, values)


EXHIBITS = {
    "curves": Curves("curves", "Curves", "", "right", "up", {"one": ([0, 1], [0, 1])}),
    "gallery": Gallery("gallery", "Gallery", "", [(Image.new("RGB", (30, 20), "red"), "red")]),
    "table": table([[1.0, 0.0], [0.25, math.nan]]),
    "bars": Bars("bars", "Bars", "", "share", {"one": 0.5, "_two $": 0.25}),
}


@pytest.mark.parametrize("kind", EXHIBITS)
def test_every_kind_is_drawn(kind, tmp_path):
    path = draw_exhibit(EXHIBITS[kind], tmp_path / "new" / f"{kind}.png")
    with Image.open(path) as drawn:
        assert np.asarray(drawn.convert("L")).std() > 5


def blueness(path):
    pixels = np.asarray(Image.open(path).convert("RGB"), float)
    return float((pixels[..., 2] - pixels[..., 0]).mean())


def test_higher_shares_are_darker(tmp_path):
    high = draw_exhibit(table([[0.9, 0.9], [0.9, 0.9]]), tmp_path / "high.png")
    low = draw_exhibit(table([[0.1, 0.1], [0.1, 0.1]]), tmp_path / "low.png")
    assert blueness(high) > 3 * blueness(low)


def test_longer_bars_are_longer(tmp_path):
    paths = [
        draw_exhibit(Bars("bars", "Bars", "", "share", {"one": value}), tmp_path / f"{value}.png")
        for value in (0.2, 0.9)
    ]
    assert blueness(paths[1]) > 2 * blueness(paths[0])


@pytest.mark.parametrize(("count", "written"), [(30, True), (31, False)])
def test_tables_of_many_rows_have_no_numbers_in_them(count, written, tmp_path):
    path = draw_exhibit(table([[0.4] * count] * count), tmp_path / "large.png")
    pixels = np.asarray(Image.open(path).convert("L"))
    height, width = pixels.shape
    inside = pixels[height // 2 : 3 * height // 4, width // 2 : 3 * width // 4]
    assert (len(np.unique(inside)) > 1) == written


def test_a_table_needs_a_value_for_each_field():
    with pytest.raises(ValueError, match=r"table: 2 x 2 names need as many values; got 2 rows of \[1, 2\]"):
        table([[1.0], [1.0, 2.0]], columns=["a", "b"])
