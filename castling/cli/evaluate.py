"""`castling evaluate`: metrics of a trained network, with its branch and castled."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from rich import get_console
from rich.progress import track

from castling.cli import HelpFormatter, add_speech, say, say_json
from castling.measure.heap import keep_heap
from castling.measure.metric import as_values, describe_metrics, headlines
from castling.tasks.prediction import NOT_FINITE
from castling.tasks.task import Batch, Loader
from castling.training.evaluation import OnDevice, best_device, evaluate
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
    parser.add_argument("--checkpoint", choices=("last", "best"), help="which weights of a run (default: last)")
    parser.add_argument("--data", metavar="DIR", help="another place of the run's data")
    parser.add_argument("--test", action="store_true", help="on the data's own held-out pictures, with data.held_out")
    parser.add_argument("--batch-size", type=int, default=64, metavar="N", help="pictures at a time")
    parser.add_argument("--workers", type=int, default=0, metavar="N", help="reading processes")
    parser.add_argument("--answers", type=Path, metavar="DIR", help="write what a student can learn from, as a teacher")
    add_speech(parser, "all metrics and the occupancy of masks")
    parser.set_defaults(run=run)


def run(flags: argparse.Namespace) -> None:
    """Print metrics; with --answers, write those of the training pictures instead."""
    if flags.test and flags.answers is not None:
        raise ValueError("--answers are those of the training pictures: --test is not for them")
    keep_heap()
    saved = open_model(flags.model, flags.checkpoint)
    device = best_device()
    network = saved.network.to(device)
    task = saved.task if flags.data is None else saved.task.elsewhere(root=flags.data)
    task = task.on_test() if flags.test else task
    if flags.answers is not None:
        loader = task.loader("train", flags.batch_size, workers=flags.workers)
        count = task.write_answers(network, OnDevice(_tracked(loader), device), flags.answers)
        say(f"wrote {count} answers into {flags.answers}")
        return
    loader = task.loader("val", flags.batch_size, workers=flags.workers)
    unreadable: dict[str, str] = {}
    loader.on_unreadable = unreadable.update
    found = evaluate(task, network, OnDevice(_tracked(loader), device), drop_branches=True)
    if not found.finite:
        raise ValueError(f"{flags.model}: {NOT_FINITE}")
    if flags.json:
        castled = None if found.castled is None else as_values(found.castled)
        content = {"metrics": describe_metrics(found.model), "model": as_values(found.model), "castled": castled}
        say_json(flags, {**content, "occupancy": found.occupancy, "unreadable": list(unreadable)})
        return
    for name, metrics in (("as it is", found.model), ("castled", found.castled)):
        if metrics is not None:
            shown = ", ".join(f"{metric.name} {metric.shown}" for metric in headlines(metrics))
            say(f"{name}: {shown}")
    for name, error in unreadable.items():
        say(f"unreadable, not counted: {name}: {error}")


class _tracked:
    """A loader that shows a bar each time it is gone through."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Batch]:
        return iter(track(self.loader, "Evaluating", total=len(self.loader), console=get_console()))
