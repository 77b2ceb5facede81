"""Measurements as files: a CSV that grows row by row, and a JSON of the whole.

Every row names hardware, versions, commit and command, so that it can be read alone. A row is on disk as soon as it is
measured, and an interrupted benchmark goes on behind the last one.
"""

from __future__ import annotations

import csv
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from castling.measure.environment import describe_environment
from castling.measure.latency import Timing
from castling.measure.plain_json import json_text


def result_path(folder: Path, what: str, environment: Mapping[str, str] | None = None) -> Path:
    """`<what>-<hardware>-<torch>-<date>.csv` in this folder.

    Args:
        folder: the folder, which need not exist.
        what: name of what was measured.
        environment: hardware and versions; this machine today by default.

    Example:
        >>> environment = {"processor": "Some (R) CPU x2", "torch": "2.7", "date": "2030-01-02"}
        >>> result_path(Path("results"), "models", environment).name
        'models-some_r_cpu_x2-2.7-2030-01-02.csv'
    """
    environment = environment or describe_environment()
    return folder / f"{_stem(what, environment)}-{environment['date']}.csv"


def open_results(folder: Path, what: str, resume: bool = False) -> Path:
    """The file for new rows.

    Args:
        folder: the folder, made where needed.
        what: name of what is measured.
        resume: whether to go on with the newest file of this hardware and torch, of whatever day.

    Raises:
        ValueError: if the file of today is there and `resume` is not set: nothing is overwritten.
    """
    environment = describe_environment()
    path = result_path(folder, what, environment)
    if resume:
        pattern = re.compile(re.escape(_stem(what, environment)) + r"-\d{4}-\d{2}-\d{2}\.csv")
        earlier = sorted(found for found in folder.glob("*.csv") if pattern.fullmatch(found.name))
        path = earlier[-1] if earlier else path
    elif path.exists():
        raise ValueError(f"{path} is there already; go on with it with --resume, or choose another --out")
    folder.mkdir(parents=True, exist_ok=True)
    return path


def time_cells(name: str, timing: Timing | None) -> dict[str, float | None]:
    """The times of a candidate in milliseconds, by column: `<name>_ms` is the median, quartiles are named.

    Args:
        name: name of the candidate.
        timing: its times; None where it was not measured, for empty cells.

    Example:
        >>> time_cells("castled", Timing(median=0.002, lower=0.001, upper=0.004))
        {'castled_ms': 2.0, 'castled_lower_quartile_ms': 1.0, 'castled_upper_quartile_ms': 4.0}
    """
    columns = (f"{name}_ms", f"{name}_lower_quartile_ms", f"{name}_upper_quartile_ms")
    if timing is None:
        return dict.fromkeys(columns)
    seconds = (timing.median, timing.lower, timing.upper)
    return {column: 1e3 * value for column, value in zip(columns, seconds, strict=True)}


def append_row(path: Path, row: Mapping[str, Any], command: str | None = None) -> dict[str, str]:
    """Write a row with its environment at the end of a CSV file, below a header where the file is new.

    Args:
        path: path of the file.
        row: values by column; None is an empty cell, floats are kept to six digits.
        command: the command that measured it; that of this process by default.

    Returns:
        The row as it was written.

    Raises:
        ValueError: if the file has other columns.
    """
    environment = {name: value for name, value in describe_environment().items() if name not in row}
    content = {**row, **environment, "command": command or command_line()}
    cells = {column: _cell(value) for column, value in content.items()}
    text = path.read_text() if path.exists() else ""
    if text:
        header = next(csv.reader(text.splitlines()))
        if header != list(cells):
            differing = sorted(set(header) ^ set(cells)) or "their order"
            raise ValueError(f"{path} has other columns than today's rows ({differing}); choose another --out")
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, cells, lineterminator="\n")
        if not text:
            writer.writeheader()
        elif not text.endswith("\n"):
            file.write("\n")  # behind a line that was cut off
        writer.writerow(cells)
    return cells


def read_rows(path: Path) -> list[dict[str, str]]:
    """All rows of a CSV file as text; none where there is no file. A line that was cut off is left out."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [row for row in rows if None not in row.values()]


def write_json(path: Path, rows: Sequence[Mapping[str, str]], **more: Any) -> Path:
    """Write rows beside their CSV file as JSON, with numbers as numbers.

    Args:
        path: path of the CSV file.
        rows: rows as `read_rows` gives them.
        **more: other plain data.

    Returns:
        The path of the JSON file.
    """
    environment = describe_environment()
    texts = {*environment, "command"} - {"threads"}  # a commit may look like a number
    numbers = [{name: cell if name in texts else _value(cell) for name, cell in row.items()} for row in rows]
    content = {"environment": environment, "command": command_line(), "rows": numbers, **more}
    path = path.with_suffix(".json")
    path.write_text(json_text(content, indent=1) + "\n")
    return path


def number_in(row: Mapping[str, Any], column: str) -> float | None:
    """A number of a row, None for an empty cell."""
    value = _value(row.get(column))
    return float(value) if isinstance(value, (int, float)) else None


def command_line() -> str:
    """How this process was called, without the folder of the program."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def _stem(what: str, environment: Mapping[str, str]) -> str:
    hardware = re.sub(r"\W+", "_", environment["processor"]).strip("_").lower()
    return f"{what}-{hardware}-{environment['torch']}"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _value(cell: Any) -> Any:
    """The number that a cell holds, None for an empty one, or its text."""
    if not isinstance(cell, str):
        return cell
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell or None
