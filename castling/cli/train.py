"""`castling train`: train a recipe, or go on with a run."""

from __future__ import annotations

import argparse
import datetime
import os
import shlex
from pathlib import Path
from typing import Any

from rich import get_console
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from castling.cli import add_speech, say, say_json
from castling.measure.heap import keep_heap
from castling.measure.metric import Metrics, headlines, with_values
from castling.training import Recipe, RunFolder, load_recipe, train
from castling.training.processes import from_first
from castling.training.recipe import first_difference
from castling.training.records import Record, StepRecord


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb and its flags."""
    parser = verbs.add_parser(
        "train",
        help="train a recipe, or go on with a run",
        description="Train a recipe into a run folder. Given a run folder, go on from its last good checkpoint. "
        "Under torchrun, several processes or machines share the work; docs/cluster.md shows it, with Slurm and "
        "Kubernetes.",
        epilog="Example: castling train digits/castling training.epochs=10 --out runs/digits; go on: castling train "
        "runs/digits; several processes: torchrun --nproc-per-node 2 -m castling train digits/castling --out "
        "runs/digits; several machines, the same on each: torchrun --nnodes 2 --nproc-per-node 8 --max-restarts 9 "
        "--rdzv-backend c10d --rdzv-endpoint HOST:29500 -m castling train digits/castling --out SHARED/digits --go-on",
    )
    parser.add_argument("recipe", metavar="RECIPE", help="recipe by name or file, or the folder of a run to go on with")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings that differ from the recipe's")
    parser.add_argument("--out", type=Path, metavar="DIR", help="run folder (default: runs/RECIPE-DATE-TIME)")
    parser.add_argument(
        "--go-on",
        action="store_true",
        help="go on with the run in --out where there is one of this recipe: one command that starts and restarts",
    )
    add_speech(parser, "the summary of the run")
    parser.set_defaults(run=run)


def run(flags: argparse.Namespace) -> None:
    """Train, with a progress bar and a line per evaluation."""
    recipe, folder, resume = from_first(lambda: _what_to_train(flags))
    keep_heap()  # a step needs the memory of the step before
    summary = train_with_progress(recipe, folder, resume)
    model, castled = (with_values(summary["metrics"], summary[side] or {}) for side in ("model", "castled"))
    say(f"{_shown(model, castled)}; the run is in {folder}")
    if castled:
        say(f"next: castling castle {shlex.quote(str(folder))}")
    say_json(flags, {"folder": str(folder), **summary})


def _what_to_train(flags: argparse.Namespace) -> tuple[Recipe, Path, bool]:
    """The recipe, the folder, and whether to go on with what is in it; settled by the first of several processes."""
    if Path(flags.recipe).is_dir():
        if flags.overrides or flags.out:
            raise ValueError("a run goes on as it began: give neither settings nor --out with a run folder")
        return RunFolder(flags.recipe).recipe(), Path(flags.recipe), True
    recipe = load_recipe(flags.recipe, flags.overrides)
    if flags.out is None and flags.go_on:
        raise ValueError("--go-on needs the folder of the run: name it with --out")
    if flags.out is None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("several processes must agree on the run folder: name it with --out")
    folder = flags.out or _new_folder(flags.recipe)
    resume = flags.go_on and RunFolder(folder).is_run()
    if resume and (difference := first_difference(recipe, RunFolder(folder).recipe())):
        raise ValueError(f"{folder} holds a run of other settings: {difference}")
    return recipe, folder, resume


def train_with_progress(
    recipe: Recipe, folder: Path, resume: bool = False, console: Console | None = None, label: str = "Training"
) -> dict[str, Any]:
    """Train and show it: a bar with loss and time left, and a line for each evaluation."""
    console = console or get_console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    progress = Progress(*columns, TextColumn("{task.fields[loss]}"), console=console)
    bar = progress.add_task(label, total=None, loss="")

    def watch(record: Record) -> None:
        progress.start()  # with the first record: what is refused before is said without a bar
        if isinstance(record, StepRecord):
            loss = "" if record.loss is None else f"loss {record.loss:.3f}"
            progress.update(bar, completed=record.step + 1, total=record.num_steps, loss=loss)
        else:
            fullest = max((max(heads) for heads in record.occupancy.values()), default=None)
            mask = "" if fullest is None else f", fullest mask {100 * fullest:.2f} %"
            console.print(
                f"epoch {round(record.epoch, 2):g}: {_shown(record.model, record.castled)}{mask}", highlight=False
            )

    try:
        return train(recipe, folder, resume, watch)
    finally:
        progress.stop()


def _shown(model: Metrics, castled: Metrics | None) -> str:
    shown = ", ".join(f"{metric.name} {metric.shown}" for metric in headlines(model))
    return f"{shown}; castled " + ", ".join(metric.shown for metric in headlines(castled)) if castled else shown


def _new_folder(recipe: str) -> Path:
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{Path(recipe).with_suffix('').as_posix().replace('/', '-')}-{now}"
