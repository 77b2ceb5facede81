"""`castling data`: what is wrong with data before a training meets it, and pictures packed into shards."""

from __future__ import annotations

import argparse
import os
import re
import shlex
from pathlib import Path

from rich import get_console
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from castling.cli import HelpFormatter, add_speech, error_console, say, say_json, say_written
from castling.measure.plain_json import json_text
from castling.report.data_page import class_rows, split_rows, write_data_page
from castling.settings import from_mapping, with_overrides
from castling.tasks import data_forms
from castling.tasks.classification.data import DataConfig, make_source
from castling.tasks.data_check import CheckOptions, DataReport, check_data, finding
from castling.tasks.picture_sources import recognise_source
from castling.tasks.shards.writer import PackOptions, pack_sources

NUM_SAMPLES = 12
MOST_CLASSES = 40  # rows that a terminal shows
UNITS = ("", "K", "M", "G", "T")


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb, its subject and its flags."""
    parser = verbs.add_parser("data", help="check pictures and annotations; pack them into shards")
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
    add_speech(check)
    check.set_defaults(run=run_check)
    _add_pack(subjects)


def _add_pack(subjects: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    pack = subjects.add_parser(
        "pack",
        help="pack labelled pictures into tar shards",
        description="Write labelled pictures as tar shards of WebDataset's layout: a few large files instead of many "
        "small ones. Files go in as they are; pictures from arrays become PNG. Train on them with data.source=shards.",
        epilog="Example: castling data pack data/imagenette --out data/imagenette-shards --shuffle 0",
        formatter_class=HelpFormatter,
    )
    add = pack.add_argument
    add("source", metavar="SOURCE", help="folder of the data, the name of a Hugging Face dataset, or digits")
    add("--out", type=Path, required=True, metavar="DIR", help="folder of the shards, which must not be there yet")
    add("--source", dest="kind", default="auto", metavar="NAME", help="data.source, as a recipe would have it")
    add("--shard-size", type=_bytes, default="256M", metavar="SIZE", help="bytes of a shard, such as 64M or 1G")
    add("--shuffle", type=int, metavar="SEED", help="mix the pictures; without it they keep their order")
    add("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of a recipe's data section")
    add_speech(pack, "pictures, shards and bytes of each split")
    pack.set_defaults(run=run_pack)


def run_check(flags: argparse.Namespace) -> int:
    """Print what was found; the exit code is 1 if there are errors."""
    printed = flags.json == "-"
    console = get_console()
    with Progress(console=error_console(), transient=True) as progress:
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
        say_written([flags.json])
    if flags.out:
        say_written([write_data_page(report, flags.out)])
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
    say(*(found.line for found in report.findings))
    say(f"errors: {report.num_errors:,}, warnings: {report.num_warnings:,}")


def run_pack(flags: argparse.Namespace) -> int:
    """Pack pictures and print what was written."""
    kind = flags.kind
    if kind == "auto":
        kind = "digits" if flags.source == "digits" else recognise_source(Path(flags.source).expanduser())
    place = {"huggingface": {"name": flags.source}, "digits": {}}.get(kind, {"root": flags.source})
    data = from_mapping(DataConfig, with_overrides({"source": kind, **place}, flags.set), "data")
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=error_console(),
    ) as progress:
        bar = progress.add_task("Opening", total=None)
        sources = {split: make_source(data, split) for split in ("train", "val")}
        progress.update(bar, description="Packing pictures")
        options = PackOptions(
            flags.shard_size, flags.shuffle, lambda done, total: progress.update(bar, completed=done, total=total)
        )
        found = pack_sources(sources, flags.out, options)
    table = Table(f"{flags.out.name} ({kind})", "pictures", "shards", "MB")
    for column in table.columns[1:]:
        column.justify = "right"
    for split, packed in found.items():
        table.add_row(split, f"{packed.num_pictures:,}", f"{len(packed.shards):,}", f"{packed.num_bytes / 1e6:,.1f}")
    get_console().print(table)
    for split, packed in found.items():
        for one in finding("warning", "pictures without a label", split, packed.without_label):
            say(one.line)
    settings = f"data.source=shards {shlex.quote(f'data.root={flags.out}')}"
    say(f"train with: castling train RECIPE {settings}")
    packed_now = {
        split: {"pictures": one.num_pictures, "shards": len(one.shards), "bytes": one.num_bytes}
        for split, one in found.items()
    }
    say_json(flags, packed_now)
    return 0


def _bytes(text: str) -> int:
    """A number of bytes, such as `256M`.

    Example:
        >>> _bytes("64M"), _bytes("1.5G"), _bytes("5000")
        (67108864, 1610612736, 5000)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None:
        raise argparse.ArgumentTypeError(f"a size is a number with K, M, G or T, such as 256M; got {text!r}")
    return int(float(found[1]) * 1024 ** UNITS.index(found[2].upper()))
