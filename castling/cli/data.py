"""`castling data`: what is wrong with data, before a training meets it."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from castling.cli import HelpFormatter
from castling.measure.plain_json import json_text
from castling.report.data_page import class_rows, split_rows, write_data_page
from castling.settings import with_overrides
from castling.tasks import data_forms
from castling.tasks.data_check import CheckOptions, DataReport, check_data

NUM_SAMPLES = 12
MOST_CLASSES = 40  # rows that a terminal shows


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb, its subject and its flags."""
    parser = verbs.add_parser("data", help="check pictures and annotations before training")
    subjects = parser.add_subparsers(title="what to do", metavar="WHAT", required=True)
    check = subjects.add_parser(
        "check",
        help="find what is wrong with data",
        description="Read every picture and annotation and say what there is, by split, and what is wrong. "
        "The exit code is 0 for clean data, 1 for errors, 2 for data that cannot be used at all.",
        epilog="Example: castling data check data/facemask --out check.html",
        formatter_class=HelpFormatter,
    )
    add = check.add_argument
    add("root", type=Path, metavar="PATH", help="folder of the data")
    add(
        "--format", default="auto", metavar="NAME", help="the form of the data; a wrong name lists those that there are"
    )
    add("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of a recipe's data section")
    add("--json", metavar="FILE", help="write what was found as JSON; - prints it")
    add("--out", type=Path, metavar="PAGE", help="write an HTML page with drawn samples")
    add("--samples", type=int, default=NUM_SAMPLES, metavar="N", help="drawn pictures of each split")
    add("--workers", type=int, default=min(8, os.cpu_count() or 1), metavar="N", help="reading processes")
    check.set_defaults(run=run)


def run(flags: argparse.Namespace) -> int:
    """Print what was found; the exit code is 1 if there are errors."""
    printed = flags.json == "-"
    console = Console(stderr=printed)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("Reading pictures", total=None)
        options = CheckOptions(
            settings=with_overrides({}, flags.set),
            num_samples=flags.samples if flags.out else 0,
            workers=flags.workers,
            on_picture=lambda done, total: progress.update(bar, completed=done, total=total),
        )
        report = check_data(flags.root, flags.format, data_forms(), options)
    _show(report, console)
    text = json_text(report.to_json(), indent=2)
    if printed:
        print(text)
    elif flags.json:
        Path(flags.json).write_text(text, encoding="utf-8")
        console.print(f"wrote {flags.json}", highlight=False, markup=False, soft_wrap=True)
    if flags.out:
        path = write_data_page(report, flags.out)
        console.print(f"wrote {path}", highlight=False, markup=False, soft_wrap=True)
    return int(report.num_errors > 0)


def _show(report: DataReport, console: Console) -> None:
    names = [split.name for split in report.splits]
    table = Table(f"{report.root.name} ({report.form})", *names)
    for column in table.columns[1:]:
        column.justify = "right"
    for row in split_rows(report):
        table.add_row(*row)
    table.add_section()
    rows = sorted(class_rows(report), key=lambda row: row[0])
    for row in rows[:MOST_CLASSES]:
        table.add_row(*row)
    if len(rows) > MOST_CLASSES:
        table.add_row(f"and {len(rows) - MOST_CLASSES} more classes")
    console.print(table)
    for finding in report.findings:
        console.print(finding.line, highlight=False, markup=False, soft_wrap=True)
    console.print(f"errors: {report.num_errors:,}, warnings: {report.num_warnings:,}", highlight=False)
