"""What a report can show of a network beside its metrics: lines, pictures, a table in colours, bars.

A task says what is to be seen, in plain values; how it is drawn is the report's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from PIL import Image


@dataclass(frozen=True)
class Curves:
    """Lines to be drawn.

    Args:
        name: the name of the file, without its ending.
        title: a few words.
        caption: what is seen.
        x_label: what goes to the right.
        y_label: what goes up.
        lines: the points of each, by its name: their places to the right and up.
    """

    name: str
    title: str
    caption: str
    x_label: str
    y_label: str
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]]


@dataclass(frozen=True)
class Gallery:
    """Pictures to be shown together.

    Args:
        name: the name of the file, without its ending.
        title: a few words.
        caption: what is seen.
        pictures: each with a line of text.
    """

    name: str
    title: str
    caption: str
    pictures: Sequence[tuple[Image.Image, str]]


@dataclass(frozen=True)
class Heatmap:
    """A table of shares, drawn in colours.

    Args:
        name: the name of the file, without its ending.
        title: a few words.
        caption: what is seen.
        row_title: what the rows are.
        column_title: what the columns are.
        rows: the name of each row.
        columns: the name of each column.
        values: one list of numbers a row, from 0 to 1; NaN for an empty field.

    Raises:
        ValueError: if there is not one value for each row and column.
    """

    name: str
    title: str
    caption: str
    row_title: str
    column_title: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float]]

    def __post_init__(self) -> None:
        lengths = {len(row) for row in self.values}
        if len(self.values) != len(self.rows) or lengths - {len(self.columns)}:
            raise ValueError(
                f"{self.name}: {len(self.rows)} x {len(self.columns)} names need as many values; "
                f"got {len(self.values)} rows of {sorted(lengths)}"
            )


@dataclass(frozen=True)
class Bars:
    """Shares to be compared.

    Args:
        name: the name of the file, without its ending.
        title: a few words.
        caption: what is seen.
        label: what a bar is long for.
        values: the length of each bar, from 0 to 1, by its name; the first is drawn on top.
    """

    name: str
    title: str
    caption: str
    label: str
    values: Mapping[str, float]


Exhibit = Curves | Gallery | Heatmap | Bars
