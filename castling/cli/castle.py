"""`castling castle`: drop the branch of a trained network, with a certificate of what that cost."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from rich import get_console
from rich.console import Console
from rich.progress import track
from rich.table import Table

from castling.cli import HelpFormatter, add_speech, say, say_json
from castling.conversion import Certificate
from castling.measure.metric import headlines
from castling.tasks.task import Batch
from castling.training.saved import CASTLED, CERTIFICATE
from castling.workflows.castle_run import Track, castle_run

COLOURS = {"free": "green", "cheap": "yellow", "unused": "yellow", "not yet": "red"}


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb and its flags."""
    parser = verbs.add_parser(
        "castle",
        help="drop the softmax branch, with a certificate",
        description="Measure on the validation pictures what dropping the branch costs, write certificate.json and, "
        "where the loss is within the tolerance, the castled weights into RUN/castled. Otherwise the exit code is 1.",
        epilog="Example: castling castle runs/digits --tolerance 0.5",
        formatter_class=HelpFormatter,
    )
    add = parser.add_argument
    add("run_folder", type=Path, metavar="RUN", help="folder of a trained run")
    add("--tolerance", type=float, default=0.5, metavar="X", help="largest loss: points of a percentage, or its unit")
    add("--checkpoint", choices=("last", "best"), help="which weights (default: last)")
    add("--data", metavar="DIR", help="another place of the run's data")
    add("--batch-size", type=int, default=64, metavar="N", help="pictures at a time")
    add_speech(parser, "the certificate")
    parser.set_defaults(run=run)


def run(flags: argparse.Namespace) -> int:
    """Certify, print the verdict, and write what it allows."""
    console = get_console()
    certificate, castled = castle_run(
        flags.run_folder, flags.tolerance, flags.checkpoint, flags.data, flags.batch_size, track=certifying(console)
    )
    print_certificate(certificate, console)
    say_json(flags, certificate.to_json())
    return say_allowed(flags.run_folder, castled)


def certifying(console: Console) -> Track:
    """A bar for the batches that a certificate is measured on."""

    def tracked(batches: Iterable[Batch], count: int) -> Iterable[Batch]:
        return track(batches, "Certifying", total=count, console=console)

    return tracked


def say_allowed(run_folder: Path, castled: Path | None) -> int:
    """Print what was written; the exit code is 1 where castled weights are forbidden."""
    lines = [f"wrote {run_folder / CERTIFICATE}"]
    if castled is not None:
        lines.append(f"wrote {castled}")
    elif (run_folder / CASTLED).exists():
        lines.append(f"no castled weights were written; those in {run_folder / CASTLED} are of an earlier certificate")
    else:
        lines.append("no castled weights were written")
    say(*lines)
    return int(castled is None)


def print_certificate(certificate: Certificate, console: Console) -> None:
    """Print the networks, the layers, the verdict with its numbers, and the advice."""
    console.width = max(console.width, 110)  # numbers are never cut
    console.print(_networks_table(certificate))
    if certificate.layers:
        console.print(_layers_table(certificate))
    if certificate.sizes:
        console.print(_sizes_table(certificate))
    colour = COLOURS[certificate.verdict]
    console.print(f"verdict: [bold {colour}]{certificate.verdict}[/]", highlight=False)
    quadratic = certificate.quadratic_tensors
    proof = "not told" if quadratic is None else str(len(quadratic) or "none")
    first = next(iter(certificate.networks))
    lines = [
        f"{certificate.lost:.2f} {certificate.unit} lost from {first} to castled "
        f"(tolerance {certificate.tolerance:g}, {certificate.num_examples} pictures)",
        f"weights {'bitwise equal' if certificate.state_dict_equal else 'DIFFER'}",
        f"N x N tensors in the castled network: {proof}" + _besides(certificate.kept_softmax),
        *certificate.advice,
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _networks_table(certificate: Certificate) -> Table:
    table = Table("network")
    first = next(iter(certificate.networks.values()))
    headings = [
        *(metric.name for metric in headlines(first.metrics)),
        "MACs",
        "parameters",
        "same answers",
        "outputs differ by",
    ]
    for heading in headings:
        table.add_column(heading, justify="right")
    for name, report in certificate.networks.items():
        table.add_row(
            name,
            *(metric.shown for metric in headlines(report.metrics)),
            f"{report.macs / 1e6:,.1f} M",
            f"{report.parameters:,}",
            f"{100 * report.agreement:.2f} %",
            f"{report.largest_difference:.3g}, median {report.median_difference:.3g}",
        )
    return table


def _layers_table(certificate: Certificate) -> Table:
    table = Table("attention", "tokens", "cut", "can empty", "peak mask", "mask now", "opened")
    for layer in certificate.layers:
        table.add_row(
            layer.name,
            str(layer.num_tokens),
            f"{layer.cut:.4g}",
            _yes(layer.can_empty),
            f"{100 * max(layer.peak):.2f} %",
            f"{100 * max(layer.occupancy):.2f} %",
            _yes(layer.opened),
        )
    return table


def _sizes_table(certificate: Certificate) -> Table:
    """A line for each network at each size of the pictures."""
    table = Table("px", "network")
    for metric in headlines(next(iter(certificate.networks.values())).metrics):
        table.add_column(metric.name, justify="right")
    for size, networks in certificate.sizes.items():
        for name, metrics in networks.items():
            table.add_row(str(size), name, *(metric.shown for metric in headlines(metrics)))
    return table


def _besides(kept: list[str]) -> str:
    return f"; {len(kept)} attentions were left as they are, such as {kept[0]}" if kept else ""


def _yes(value: bool) -> str:
    return "yes" if value else "no"
