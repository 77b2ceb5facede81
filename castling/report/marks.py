"""Tables in Markdown files: what stands between two marks is written by a command, and never by hand."""

from __future__ import annotations

import re
from pathlib import Path

BEGIN = re.compile(r"^<!-- castling ([^\n]+?): begin -->$", re.MULTILINE)


def marked(path: Path) -> list[str]:
    """The names of a file's marks, in its order.

    Raises:
        OSError: if it cannot be read.
    """
    return BEGIN.findall(path.read_text())


def read_marked(path: Path, name: str) -> str:
    """What stands between the marks of this name.

    Args:
        path: the Markdown file.
        name: the name, such as `models`.

    Raises:
        ValueError: if the marks are not there.
        OSError: if it cannot be read.
    """
    found = _between(name).search(path.read_text())
    if found is None:
        begin, end = (f"<!-- castling {name}: {edge} -->" for edge in ("begin", "end"))
        raise ValueError(f"{path} lacks the lines {begin!r} and {end!r}")
    return found[2]


def write_marked(path: Path, name: str, content: str) -> None:
    """Replace what stands between the marks of this name.

    Args:
        path: the Markdown file.
        name: the name.
        content: what is to stand there, without an empty line around it.

    Raises:
        ValueError: if the marks are not there; the file then stays as it is.
    """
    read_marked(path, name)
    path.write_text(_between(name).sub(lambda parts: f"{parts[1]}{content}\n{parts[3]}", path.read_text()))


def _between(name: str) -> re.Pattern[str]:
    begin, end = (re.escape(f"<!-- castling {name}: {edge} -->") for edge in ("begin", "end"))
    return re.compile(f"({begin}\n)(.*?)\n?({end})", re.DOTALL)


def markdown_table(columns: list[str], rows: list[list[str]], num_text: int = 1) -> str:
    """Cells as a Markdown table.

    Args:
        columns: the head.
        rows: the cells.
        num_text: how many columns, from the left, are text; the others are numbers and stand on the right.

    Example:
        >>> print(markdown_table(["name", "size"], [["a", "1"]]))
        | name | size |
        | --- | ---: |
        | a | 1 |
    """
    rule = ["---"] * num_text + ["---:"] * (len(columns) - num_text)
    return "\n".join(f"| {' | '.join(line)} |" for line in [columns, rule, *rows])
