"""`castling export`: a castled model as a file for an engine, verified against PyTorch."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from rich import get_console
from rich.console import Console
from rich.progress import track
from rich.table import Table

from castling.cli import HelpFormatter, add_speech, say, say_json, say_written
from castling.exporting import FORMATS, ExportFailed, QuantizationCard, Verification, export
from castling.tasks.task import Batch
from castling.workflows.exporting import find_subject, quantize_run


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb and its flags."""
    parser = verbs.add_parser(
        "export",
        help="write a castled model as a file for ONNX Runtime, OpenVINO or torch",
        description="Write a model as a file, and compare it with PyTorch at several sizes. A file that differs is "
        "removed, and the exit code is 1.",
        epilog="Example: castling export runs/digits --format openvino --int8",
        formatter_class=HelpFormatter,
    )
    add = parser.add_argument
    add("model", metavar="MODEL_OR_RUN", help="run folder, its castled folder, or the name of a model")
    add("--format", choices=FORMATS, default="onnx", help="kind of file")
    add("--out", type=Path, metavar="FILE", help="file to write (default: in the run, or here, by the model's name)")
    add("--size", type=parse_size, metavar="HxW", help="image size that it is made for (default: the model's)")
    add("--batch", type=int, default=1, metavar="N", help="images at a time that it is made for")
    add("--static", action="store_true", help="fix batch, height and width")
    add("--with-branch", action="store_true", help="write a model that was not castled")
    add("--int8", action="store_true", help="write a file in 8 bits as well (a run, format openvino)")
    add("--max-loss", type=float, default=0.5, metavar="X", help="what 8 bits may lose: points, or the metric's unit")
    add("--allow-slower", action="store_true", help="write 8 bits though they are slower here, for a smaller file")
    add("--finished", action="store_true", help="with what is done to outputs in the file, such as choosing boxes")
    add("--tolerance", type=float, metavar="X", help="largest difference to PyTorch's outputs (default: the task's)")
    add("--weights", type=Path, metavar="FILE", help="weights of a named model (default: random)")
    add("--checkpoint", choices=("last", "best"), help="which weights of a run (default: last)")
    add("--data", metavar="DIR", help="another place of the run's data, for --int8")
    add_speech(parser, "what was verified, and the card of 8 bits")
    parser.set_defaults(run=run)


def run(flags: argparse.Namespace) -> int:
    """Export, print what was verified, and quantise where asked to."""
    console = get_console()
    subject = find_subject(
        flags.model, flags.size, flags.batch, flags.weights, flags.checkpoint, flags.with_branch, flags.finished
    )
    if flags.int8 and flags.finished:
        raise ValueError("--int8 measures outputs as they are: leave --finished out")
    if flags.int8 and (flags.format != "openvino" or subject.task is None):
        raise ValueError(
            "--int8 needs --format openvino, and a run whose pictures it can be calibrated and measured on"
        )
    suffix = FORMATS[flags.format].suffixes[0]
    out = flags.out or subject.out.with_name(subject.out.name + suffix)
    if out.suffix != suffix:
        raise ValueError(f"a file of format {flags.format} ends in {suffix}; got {out}")

    def tracked(batches: Iterable[Batch], count: int, what: str) -> Iterable[Batch]:
        return track(batches, what, total=count, console=console, transient=True)

    card = None
    try:
        with console.status(f"Exporting to {out}, and comparing with PyTorch"):
            seen = export(
                subject.network,
                out,
                subject.example,
                dynamic=not flags.static,
                metadata=subject.metadata,
                with_branch=flags.with_branch,
                tolerance=subject.tolerance if flags.tolerance is None else flags.tolerance,
            )
        print_verification(seen, console)
        if flags.int8:
            card = quantize_run(subject, seen, flags.data, flags.max_loss, flags.allow_slower, tracked)
            print_card(card, console)
    except ExportFailed as error:
        print(f"castling: {error}", file=sys.stderr)
        return 1
    say_json(flags, {**asdict(seen), "path": str(seen.path), "int8": None if card is None else card.to_json()})
    return 0


def print_verification(seen: Verification, console: Console) -> None:
    """Print what was compared and found."""
    n = "" if seen.num_tokens is None else f" (N = {seen.num_tokens:,})"
    quadratic = f"not looked for: {seen.obstacle}" if seen.quadratic is None else str(len(seen.quadratic) or "none") + n
    common = ", ".join(f"{count} {name}" for name, count in list(seen.operators.items())[:5])
    rows = {
        "largest difference to PyTorch": f"{seen.largest_difference:.2g} (tolerance {seen.tolerance:g})",
        "compared at": ", ".join("x".join(map(str, shape)) for shape in seen.shapes),
        "free axes": ", ".join(seen.dynamic) or "none",
        "softmax operators": str(seen.num_softmax or "none"),
        "N x N tensors": quadratic,
        "operators": f"{seen.num_operators}, {100 * seen.native_share:.0f} % native; {common}",
    }
    _print_table("verified", rows, console)
    if seen.num_softmax:
        say("This file has softmax attention, whose cost grows with the square of the number of tokens.")
    say_written([seen.path])


def print_card(card: QuantizationCard, console: Console) -> None:
    """Print what 8 bits cost and gave."""
    names = ", ".join(card.kept_in_float[:4])
    rows = {
        card.metric_before.name: f"{card.metric_before.shown} to {card.metric_after.shown}: {card.lost:.2f} "
        f"{card.metric_before.difference_unit} lost ({card.max_loss:g} allowed)",
        "size": f"{card.bytes_before / 1e6:.2f} MB to {card.bytes_after / 1e6:.2f} MB",
        "median time of one image": f"{card.milliseconds_before:.2f} ms to {card.milliseconds_after:.2f} ms",
        "layers kept in float": f"{len(card.kept_in_float)} of {card.num_layers}" + (f": {names}" if names else ""),
    }
    _print_table("in 8 bits", rows, console)
    say_written([card.path, card.path.with_suffix(".json")])


def _print_table(title: str, rows: dict[str, str], console: Console) -> None:
    table = Table(title=title, show_header=False)
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table)


def parse_size(text: str) -> tuple[int, int]:
    """Height and width of `224` or `224x320`.

    Raises:
        argparse.ArgumentTypeError: for anything else.

    Example:
        >>> parse_size("224"), parse_size("224x320")
        ((224, 224), (224, 320))
    """
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(side.isdigit() and int(side) > 0 for side in sides):
        raise argparse.ArgumentTypeError(f"expected HxW in pixels, such as 224x320; got {text!r}")
    return int(sides[0]), int(sides[-1])
