"""`castling models`: what is registered, how large it is and what it costs."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from rich import get_console
from rich.progress import track
from rich.table import Table

from castling.cli import add_speech, say_json, say_written
from castling.report.marks import read_marked, write_marked
from castling.report.model_table import COLUMNS, MARK, cells, markdown, model_names, model_row


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb and its flags."""
    parser = verbs.add_parser(
        "models",
        help="list models with parameters and MACs",
        description="List the registered models in their inference form, with the MACs of their softmax twins.",
        epilog="Example: castling models deit",
    )
    parser.add_argument("pattern", nargs="?", default="*", metavar="PATTERN", help="part of a name, or wildcards")
    parser.add_argument("--into", type=Path, metavar="FILE", help="write it between the marks of a Markdown file")
    add_speech(parser, "a row for each model")
    parser.set_defaults(run=run)


def run(flags: argparse.Namespace) -> None:
    """Print the table, or write it into a file."""
    if flags.into:
        read_marked(flags.into, MARK)  # rather now than after counting
    rows = [model_row(name) for name in track(model_names(flags.pattern), "Counting")]
    if flags.into:
        write_marked(flags.into, MARK, markdown(rows))
        say_written([flags.into])
    say_json(flags, [asdict(row) for row in rows])
    if flags.into:
        return
    console = get_console()
    console.width = max(console.width, 110)  # names are never cut
    table = Table(*COLUMNS)
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(*cells(row))
    console.print(table)
