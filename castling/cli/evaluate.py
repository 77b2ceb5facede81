"""`castling evaluate`: metrics of a trained model, with its branch and castled."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

from castling.cli import HelpFormatter
from castling.tasks.classification.distillation import write_logits
from castling.training.evaluation import OnDevice, evaluate_both
from castling.training.saved import open_model


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb and its flags."""
    parser = verbs.add_parser(
        "evaluate",
        help="measure a trained model on its data",
        description="Evaluate a run, or what 'castling castle' wrote, on the validation pictures of its data.",
        epilog="Example: castling evaluate runs/digits/castled --json",
        formatter_class=HelpFormatter,
    )
    parser.add_argument("model", type=Path, metavar="RUN", help="run folder, or its castled folder")
    parser.add_argument("--checkpoint", choices=("last", "best"), default="last", help="which weights of a run")
    parser.add_argument("--data", metavar="DIR", help="another place of the run's data")
    parser.add_argument("--batch-size", type=int, default=64, metavar="N", help="pictures at a time")
    parser.add_argument("--workers", type=int, default=0, metavar="N", help="reading processes")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--logits", type=Path, metavar="DIR", help="write logits of the training pictures as a teacher")
    parser.set_defaults(run=run)


def run(flags: argparse.Namespace) -> None:
    """Print metrics; with --logits, write those of the training pictures instead."""
    saved = open_model(flags.model, flags.checkpoint)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    saved.model.to(device)
    task = saved.recipe.make_task(flags.data)
    console = Console(stderr=flags.json)
    if flags.logits is not None:
        loader = task.build_loader("train", flags.batch_size, workers=flags.workers)
        logits, names = task.logits(saved.model, OnDevice(_tracked(loader, console), device))
        write_logits(flags.logits, logits, names)
        console.print(f"wrote {len(names)} logits into {flags.logits}", highlight=False, soft_wrap=True)
        return
    loader = task.build_loader("val", flags.batch_size, workers=flags.workers)
    unreadable: list[tuple[str, str]] = []
    batches = OnDevice(_tracked(loader, console), device)
    found = evaluate_both(task, saved.model, batches, note_unreadable=unreadable.extend)
    if flags.json:
        print(json.dumps({**found, "unreadable": [name for name, _ in unreadable]}))
        return
    for name, metrics in (("as it is", found["model"]), ("castled", found["castled"])):
        if metrics is not None:
            shown = ", ".join(f"{key} {value:.4f}" for key, value in metrics.items())
            console.print(f"{name}: {shown}", highlight=False)
    for name, error in unreadable:
        console.print(f"unreadable, not counted: {name}: {error}", highlight=False, markup=False, soft_wrap=True)


class _tracked:
    """A loader that shows a bar each time it is gone through."""

    def __init__(self, loader: Any, console: Console) -> None:
        self.loader, self.console = loader, console

    def __iter__(self) -> Iterator[Any]:
        return iter(track(self.loader, "Evaluating", total=len(self.loader), console=self.console))
