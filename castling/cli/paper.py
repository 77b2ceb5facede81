"""`castling paper`: our counts beside the paper's, table by table."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

from rich import get_console
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from castling.cli import add_speech, say, say_json, say_written
from castling.measure.environment import describe_environment
from castling.measure.plain_json import json_text
from castling.report.paper import ROWS, Comparison, compare_with_paper

TITLES = {
    "imagenet": "Castling-ViT over SOTA baselines on ImageNet",
    "revisit": "Attention design, LeViT-192",
    "levit384": "Attention design, LeViT-384",
    "coco": "Detection, COCO",
    "ade20k": "Segmentation, ADE20K",
    "latency": "Latency of detectors",
    "ablation_s_320": "What each part of Castling adds, S-320",
    "ablation_m_416": "What each part of Castling adds, M-416",
}
LABELS = {"params_m": "params, M", "macs_m": "MACs, M", "macs_g": "MACs, G", "backbone_macs_g": "backbone, G"}


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb and its flags."""
    parser = verbs.add_parser(
        "paper",
        help="compare parameters and MACs with the paper's tables",
        description="Count parameters and MACs of every row of the paper that exists here, in the paper's convention.",
        epilog="Example: castling paper --json paper.json",
    )
    parser.add_argument("--json", nargs="?", const="-", metavar="FILE", help="JSON into a file, or printed")
    add_speech(parser)
    parser.set_defaults(run=run)


def run(flags: argparse.Namespace) -> None:
    """Print one table for each of the paper's."""
    file = None if flags.json in (None, "-") else Path(flags.json)
    if file and not file.parent.is_dir():
        raise FileNotFoundError(f"no folder {file.parent} to write {file.name} into")
    comparisons: list[Comparison] = []
    missing: dict[str, str] = {}
    for row in track(ROWS, "Counting"):
        try:
            comparisons += compare_with_paper([row])
        except ImportError as error:  # of an extra that its network needs
            missing[row.table] = str(error)
    console = get_console()
    console.width = max(console.width, 100)  # numbers are never cut
    for table, group in groupby(comparisons, key=lambda found: found.table):
        _print_table(console, TITLES[table], list(group))
    for table, reason in missing.items():
        say(f"{TITLES[table]}: {reason}")
    content = {"environment": describe_environment(), "rows": [asdict(found) for found in comparisons]}
    if file:
        file.write_text(json_text(content, indent=1) + "\n")
        say_written([file])
    else:
        say_json(flags, content)


def _print_table(console: Console, title: str, comparisons: list[Comparison]) -> None:
    """A line for each row, and below it why some numbers do not fit."""
    columns = [column for column in LABELS if column in {found.column for found in comparisons}]
    table = Table(title=title)
    table.add_column("row", no_wrap=True)
    for column in columns:
        for heading in (LABELS[column], "reported", "error"):
            table.add_column(heading, justify="right", no_wrap=True)
    notes: list[str] = []
    for row, group in groupby(comparisons, key=lambda found: found.row):
        cells: list[str] = []
        for found in group:
            mark = ""
            if found.note:
                notes += [found.note] if found.note not in notes else []
                mark = f" [{notes.index(found.note) + 1}]"
            cells += [f"{found.computed:.3f}", f"{found.reported:g}", f"{found.error:+.1%}{mark}"]
        table.add_row(row, *map(escape, cells))
    console.print(table)
    for number, note in enumerate(notes, 1):
        console.print(f"[{number}] {note}", markup=False, highlight=False)
