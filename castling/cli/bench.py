"""`castling bench`: speed and cost, always beside softmax attention in the same run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from rich import get_console
from rich.progress import track
from rich.table import Table

from castling.bench.attention import COMPARED_KERNELS, MOST_QUADRATIC_TOKENS, TOKENS, crossovers, measure_kernels
from castling.bench.candidates import check_against, passes_of
from castling.bench.figures import draw_speedups, short_name
from castling.bench.models import (
    MIN_ROUNDS,
    MODELS,
    PATCHES,
    SIZES,
    make_settings,
    measure_row,
    paper_ratios,
    row_key,
)
from castling.bench.results_file import append_row, number_in, open_results, read_rows, write_json
from castling.bench.speed_tables import write_speed_tables
from castling.cli import HelpFormatter, add_speech, say, say_json, say_written
from castling.cli.export import parse_size
from castling.exporting.engines import ENGINES
from castling.extras import import_extra
from castling.measure.environment import describe_environment
from castling.measure.heap import keep_heap

RESULTS = Path("benchmarks/results")


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb, its two subjects and their flags."""
    parser = verbs.add_parser("bench", help="measure speed and cost")
    subjects = parser.add_subparsers(title="what to measure", metavar="WHAT", required=True)
    attention = subjects.add_parser(
        "attention",
        help="one attention, without a network around it",
        description="Compare fused softmax attention with the other kernels, for one image of N tokens, and say from "
        "how many tokens on each is faster.",
        epilog="Example: castling bench attention --tokens 196 1024 --kernels relu_e",
        formatter_class=HelpFormatter,
    )
    add = attention.add_argument
    add("--tokens", type=int, nargs="+", default=list(TOKENS), metavar="N", help="numbers of tokens")
    add("--heads", type=int, default=3, metavar="N", help="number of heads")
    add("--head-dims", type=int, nargs="+", default=[64], metavar="N", help="channels of a head")
    kernels = f"kernels to compare with; quadratic ones up to {MOST_QUADRATIC_TOKENS:,} tokens"
    add("--kernels", nargs="+", choices=COMPARED_KERNELS, default=list(COMPARED_KERNELS), help=kernels)
    add("--threads", type=int, nargs="+", metavar="N", help="threads, one table for each; torch's by default")
    add("--repeats", type=int, default=MIN_ROUNDS, metavar="N", help=f"rounds of turns, {MIN_ROUNDS} or more")
    add("--out", type=Path, metavar="DIR", help="folder for the results as CSV and JSON")
    add_speech(attention, "the rows, and where each kernel overtakes softmax")
    attention.set_defaults(run=run_attention)

    models = subjects.add_parser(
        "models",
        help="whole networks over image and patch sizes",
        description="Compare castled networks with their softmax baselines: time, memory and MACs, float32.",
        epilog="Example: castling bench models --models deit_tiny levit_256 --sizes 224 512 --engines eager openvino",
        formatter_class=HelpFormatter,
    )
    add = models.add_argument
    add("--models", nargs="+", default=list(MODELS), metavar="NAME", help="names or parts of them, runs, recipes")
    add("--sizes", type=_side_or_sides, nargs="*", default=list(SIZES), metavar="PX|HxW", help="sizes of the images")
    add("--patches", type=int, nargs="*", default=list(PATCHES), metavar="PX", help="patch sizes of DeiT at 224 px")
    add("--engines", nargs="+", choices=ENGINES, default=["eager"], help="what runs the networks")
    add("--batches", type=int, nargs="+", default=[1], metavar="N", help="numbers of images at a time")
    add("--repeats", type=int, default=MIN_ROUNDS, metavar="N", help=f"rounds of turns at least, {MIN_ROUNDS} or more")
    add("--threads", type=int, metavar="N", help="threads; torch's by default")
    add("--without", nargs="+", choices=("softmax", "host", "unfused"), default=[], help="candidates to leave out")
    add("--no-memory", action="store_true", help="do not measure memory, which takes a process for each number")
    add("--against", metavar="FILE|NAME", help="another candidate: an .onnx file, or a model of timm's")
    add("--out", type=Path, default=Path("bench"), metavar="DIR", help="folder for the results, made where needed")
    add("--resume", action="store_true", help="go on with the newest results in the folder")
    add("--uncommitted", action="store_true", help="measure though files differ from the commit that rows would name")
    add("--into", type=Path, nargs="+", metavar="FILE", help="write tables of recorded rows between a file's marks")
    add("--results", type=Path, default=RESULTS, metavar="DIR", help=f"folder of the CSV files (default: {RESULTS})")
    add_speech(models, "the rows")
    models.set_defaults(run=run_models)


def run_attention(flags: argparse.Namespace) -> None:
    """Print a table of times over the number of tokens, and where each kernel overtakes softmax."""
    threads = flags.threads or [torch.get_num_threads()]
    if min(*flags.tokens, flags.heads, *flags.head_dims, *threads) < 1:
        raise ValueError(
            f"tokens, heads, head-dims and threads must be at least 1; got {flags.tokens}, {flags.heads}, "
            f"{flags.head_dims} and {threads}"
        )
    _check_rounds(flags.repeats)
    path = open_results(flags.out, "crossover") if flags.out else None
    rows: list[dict[str, Any]] = []
    # The largest first: then every other size runs in memory that the process already holds.
    places = list(product(threads, flags.head_dims, sorted(set(flags.tokens), reverse=True)))
    for num_threads, head_dim, num_tokens in track(places, "Measuring"):
        for row in measure_kernels(num_tokens, flags.kernels, flags.heads, head_dim, num_threads, flags.repeats):
            rows.append(row)
            if path:
                append_row(path, row)
    console = get_console()
    console.width = max(console.width, 60 + 16 * len(flags.kernels))  # numbers are never cut
    for num_threads, head_dim in product(threads, flags.head_dims):
        chosen = [row for row in rows if (row["threads"], row["head_dim"]) == (num_threads, head_dim)]
        title = (
            f"softmax (fused SDPA): {flags.heads} heads of {head_dim} channels, batch 1, float32, {num_threads} threads"
        )
        console.print(_attention_table(chosen, flags.kernels, title))
        for found in crossovers(chosen):
            since = (
                f"from {found['crossover']:,} tokens on" if found["crossover"] else f"not up to {found['largest']:,}"
            )
            say(f"{found['kernel']} is faster than softmax: {since}")
    if path:
        say_written([path, write_json(path, read_rows(path), crossovers=crossovers(rows))])
    say_json(flags, {"rows": rows, "crossovers": crossovers(rows)})


def _attention_table(rows: Sequence[dict[str, Any]], kernels: Sequence[str], title: str) -> Table:
    table = Table(title=title)
    for column in ("tokens", "softmax MACs", "kernel MACs", "fewer", "softmax ms"):
        table.add_column(column, justify="right")
    for kernel in kernels:
        table.add_column(f"{kernel}\nms, faster", justify="right")
    for num_tokens in sorted({row["tokens"] for row in rows}):
        by_kernel = {row["kernel"]: row for row in rows if row["tokens"] == num_tokens}
        first = next(by_kernel[kernel] for kernel in kernels if kernel in by_kernel)
        table.add_row(
            f"{num_tokens:,}",
            f"{first['softmax_macs'] / 1e6:,.0f} M",
            f"{first['kernel_macs'] / 1e6:,.0f} M",
            f"{first['fewer_macs']:.1f}x",
            f"{first['softmax_ms']:.2f}",
            *(_time_and_ratio(by_kernel.get(kernel)) for kernel in kernels),
        )
    return table


def _time_and_ratio(row: dict[str, Any] | None) -> str:
    return "" if row is None else f"{row['kernel_ms']:.2f}, {row['faster']:.1f}x"


def run_models(flags: argparse.Namespace) -> None:
    """Measure row by row, keep each as it is done, then print the tables and draw the figures."""
    if flags.into:
        for page in flags.into:
            write_speed_tables(page, flags.results)
            say_written([page])
        return
    settings = make_settings(flags.models, flags.sizes, flags.patches, flags.engines, flags.batches)
    if (commit := describe_environment()["commit"]).endswith("-dirty") and not flags.uncommitted:
        raise ValueError(
            f"files differ from the commit, so that nobody could measure the rows of {commit} again; commit them, or "
            "measure with --uncommitted"
        )
    check_against(flags.against)
    _check_rounds(flags.repeats)
    if flags.threads is not None and flags.threads < 1:
        raise ValueError(f"threads must be at least 1; got {flags.threads}")
    import_extra("matplotlib", "report")  # rather now than after an hour
    keep_heap()
    path = open_results(flags.out, "models", flags.resume)
    before = torch.get_num_threads()
    torch.set_num_threads(flags.threads or before)
    try:
        done = {row_key(row) for row in read_rows(path)}
        for setting in track(settings, "Measuring"):
            key = {**vars(setting), "threads": torch.get_num_threads(), "against": flags.against}
            if row_key(key) not in done:
                memory = not flags.no_memory
                append_row(path, measure_row(setting, flags.repeats, None, memory, flags.against, flags.without))
    finally:
        torch.set_num_threads(before)
    rows = read_rows(path)
    console = get_console()
    console.width = max(console.width, 190)  # numbers are never cut
    console.print(_models_table(rows))
    if any(row["paper_castled_images_per_s"] for row in rows):
        console.print(_paper_table(rows))
    noted = (f"{short_name(row['model'])}, {row['size']} px: {row['notes']}" for row in rows if row["notes"])
    say(*dict.fromkeys(noted))
    say_json(flags, rows)
    say_written([path, write_json(path, rows), *draw_speedups(rows, path.with_suffix(""))])


def _models_table(rows: Sequence[dict[str, str]]) -> Table:
    """Times, ratios, memory and MACs; the candidate of one's own only where there is one."""
    kinds = passes_of(next((row["against"] for row in rows if row["against"]), None))
    table = Table(title="castled beside softmax attention: median times, float32")
    table.add_column("model", no_wrap=True)
    headings = ["px", "patch", "tokens", "engine", "batch", "threads", *(f"{kind}\nms" for kind in kinds)]
    headings += [f"over\n{kind}" for kind in kinds[1:]] + ["MAC\nbound", "reached"]
    for heading in (*headings, *(f"{kind}\nMiB" for kind in kinds)):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            short_name(row["model"]),
            *(row[column] for column in ("size", "patch", "tokens", "engine", "batch", "threads")),
            *(_text(row, f"{kind}_ms", ",.1f") for kind in kinds),
            *(_text(row, f"speedup_over_{kind}", ".2f", "x") for kind in kinds[1:]),
            _text(row, "mac_bound", ".2f", "x"),
            _text(row, "bound_reached", ".0%"),
            *(_text(row, f"{kind}_peak_mib", ",.0f") for kind in kinds),
        )
    return table


def _paper_table(rows: Sequence[dict[str, str]]) -> Table:
    """Ours beside the paper's, where it measured the same network at the same size."""
    table = Table(title="beside the paper (one V100, largest batch that fits; ours as above)")
    table.add_column("model", no_wrap=True)
    speeds = ["paper images/s\nsoftmax, castled", "paper\nfaster", "ours over\nunfused", "ours over\nfused host"]
    savings = ["paper MB\nsoftmax, castled", "paper\nsaving", "ours to\nunfused", "ours to\nfused host"]
    for column in ("px", "patch", "engine", *speeds, *savings):
        table.add_column(column, justify="right")
    for row in rows:
        if not row["paper_castled_images_per_s"]:
            continue
        paper = paper_ratios(row)
        castled = number_in(row, "castled_peak_mib")
        softmax = [number_in(row, f"{kind}_peak_mib") for kind in ("unfused", "host")]
        table.add_row(
            short_name(row["model"]),
            *(row[column] for column in ("size", "patch", "engine")),
            f"{row['paper_softmax_images_per_s']}, {row['paper_castled_images_per_s']}",
            f"{paper['speedup']:.2f}x" if paper["speedup"] else "",
            _text(row, "speedup_over_unfused", ".2f", "x"),
            _text(row, "speedup_over_host", ".2f", "x"),
            f"{row['paper_softmax_mb']}, {row['paper_castled_mb']}" if row["paper_castled_mb"] else "",
            f"{paper['saving']:.2f}x" if paper["saving"] else "",
            *(f"{memory / castled:.2f}x" if memory and castled else "" for memory in softmax),
        )
    return table


def _side_or_sides(text: str) -> int | str:
    height, width = parse_size(text)
    return height if height == width else f"{height}x{width}"


def _text(row: dict[str, str], column: str, form: str, unit: str = "") -> str:
    value = number_in(row, column)
    return "" if value is None else f"{value:{form}}{unit}"


def _check_rounds(repeats: int) -> None:
    if repeats < MIN_ROUNDS:
        raise ValueError(f"repeats must be at least {MIN_ROUNDS}, for medians with quartiles; got {repeats}")
