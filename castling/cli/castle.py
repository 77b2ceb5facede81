"""`castling castle`: drop the branch of a trained model, with a certificate of what that cost."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from castling.cli import HelpFormatter
from castling.conversion import Certificate, certify
from castling.training.run_folder import write_file
from castling.training.saved import CERTIFICATE, occupancy_history, open_model, write_castled

COLOURS = {"free": "green", "cheap": "yellow", "not yet": "red"}


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
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="folder of a trained run")
    parser.add_argument("--tolerance", type=float, default=0.5, metavar="POINTS", help="largest loss of accuracy")
    parser.add_argument("--checkpoint", choices=("last", "best"), default="last", help="which weights")
    parser.add_argument("--data", metavar="DIR", help="another place of the run's data")
    parser.add_argument("--batch-size", type=int, default=64, metavar="N", help="pictures at a time")
    parser.set_defaults(run=run)


def run(flags: argparse.Namespace) -> int:
    """Certify, print the verdict, and write what it allows."""
    console = Console()
    certificate, castled_folder = castle_run(
        flags.run_folder, flags.tolerance, flags.checkpoint, flags.data, flags.batch_size
    )
    print_certificate(certificate, console)
    console.print(f"wrote {flags.run_folder / CERTIFICATE}", highlight=False, soft_wrap=True)
    if castled_folder is None:
        old = flags.run_folder / "castled"
        console.print(
            "no castled weights were written" + (f"; those in {old} are of an earlier certificate" * old.exists()),
            highlight=False,
            soft_wrap=True,
        )
        return 1
    console.print(f"wrote {castled_folder}", highlight=False, soft_wrap=True)
    return 0


def castle_run(
    folder: Path, tolerance: float = 0.5, checkpoint: Any = "last", data: str | None = None, batch_size: int = 64
) -> tuple[Certificate, Path | None]:
    """Certify a run and write its castled weights; the folder is None where the verdict forbids it."""
    saved = open_model(folder, checkpoint)
    saved.model.to("cuda" if torch.cuda.is_available() else "cpu")
    task = saved.recipe.make_task(data)
    loader = task.build_loader("val", batch_size)
    batches: Iterable[Any] = track(loader, "Certifying", total=len(loader.batch_sampler))
    certificate = certify(saved.model, batches, tolerance, occupancy_history(folder))
    content = certificate.to_json()
    write_file(folder / CERTIFICATE, json.dumps(content, indent=2).encode())
    return certificate, None if certificate.verdict == "not yet" else write_castled(folder, saved, content)


def print_certificate(certificate: Certificate, console: Console) -> None:
    """Print the verdict with its numbers, a table of layers and the advice."""
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
    console.print(table)
    colour = COLOURS[certificate.verdict]
    console.print(f"verdict: [bold {colour}]{certificate.verdict}[/]", highlight=False)
    lines = [
        f"{certificate.metric} with the branch {100 * certificate.with_branch:.2f} %, castled "
        f"{100 * certificate.castled:.2f} %: {certificate.gap:.2f} points lost "
        f"(tolerance {certificate.tolerance:g}, {certificate.num_examples} pictures)",
        f"same prediction for {100 * certificate.agreement:.2f} %; logits differ by at most "
        f"{certificate.largest_difference:.3g}, by {certificate.median_difference:.3g} in the median",
        f"weights {'bitwise equal' if certificate.state_dict_equal else 'DIFFER'}, {certificate.parameters:,} of them",
        f"{certificate.macs_with_branch / 1e6:,.1f} M MACs with the branch, "
        f"{certificate.macs_castled / 1e6:,.1f} M castled",
        f"N x N tensors in the castled model: {len(certificate.quadratic_tensors) or 'none'}",
        *certificate.advice,
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _yes(value: bool) -> str:
    return "yes" if value else "no"
