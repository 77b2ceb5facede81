"""One run of a study: trained to its end and castled, or evaluated on the test pictures.

As a process of its own, `python -m castling.workflows.study_run`, it reads its recipe from the standard input.
"""

from __future__ import annotations

import itertools
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from castling.bench.study_rows import AS_TRAINED, TEST, is_done
from castling.measure.environment import describe_environment
from castling.measure.heap import keep_heap
from castling.measure.metric import as_values
from castling.measure.plain_json import json_text, read_object
from castling.sentences import one_line
from castling.settings import read_yaml
from castling.training import RunFolder, parse_recipe, train
from castling.training.evaluation import OnDevice, best_device, evaluate
from castling.training.recipe import Recipe, first_difference
from castling.training.records import Record, Watch
from castling.training.run_folder import write_file
from castling.training.saved import CASTLED, CERTIFICATE, open_model
from castling.training.signals import Interrupted
from castling.workflows.castle_run import castle_run

Work = Literal["train", "test"]
WIDE = 100.0  # points: what castling costs is a result of a study, whatever it is
BATCH = 64

logger = logging.getLogger(__name__)


def do_work(work: Work, recipe: Recipe, folder: Path, watch: Watch = lambda record: None) -> None:
    """Train and castle a run, or look at the test pictures with it.

    Args:
        work: which of the two.
        recipe: its recipe.
        folder: its folder, where it may have begun.
        watch: a function that is told of every step and every evaluation.

    Raises:
        ValueError: if the folder holds a run of other settings, or its data has no test pictures.
    """
    if work == "train":
        train_and_castle(recipe, folder, watch)
    else:
        evaluate_on_test(folder)


def train_and_castle(recipe: Recipe, folder: Path, watch: Watch = lambda record: None) -> None:
    """Train a run, or go on with it, and castle it where it has branches; a run that is done stays as it is.

    Args:
        recipe: its recipe.
        folder: its folder.
        watch: a function that is told of every step and every evaluation.

    Raises:
        ValueError: if the folder holds a run of other settings.
    """
    run = RunFolder(folder)
    if run.is_run() and (difference := first_difference(recipe, run.recipe())):
        raise ValueError(f"{folder} holds a run of other settings: {difference}")
    if not run.is_finished():
        train(recipe, folder, resume=run.is_run(), watch=watch)
    if not is_done(folder):
        castle_run(folder, tolerance=WIDE)


def evaluate_on_test(folder: Path) -> None:
    """Evaluate the last weights of a run on the held-out pictures of the data itself, which its training did not read.

    Args:
        folder: the folder of a run that is done.

    Raises:
        ValueError: if these were looked at in training, or outputs are not finite.
    """
    saved = open_model(folder)
    task = saved.task.on_test()
    network = saved.network.to(best_device())
    found = evaluate(task, network, OnDevice(task.loader("val", BATCH), best_device()), drop_branches=True)
    if not found.finite:
        raise ValueError(f"{folder}: outputs for the test pictures are not finite")
    if found.castled is None:
        networks = {AS_TRAINED: as_values(found.model)}
    else:
        *_, before, _ = read_object(folder / CERTIFICATE)["networks"]  # as the rows of validation call it
        networks = {before: as_values(found.model), CASTLED: as_values(found.castled)}
    content = {"networks": networks, "environment": describe_environment()}
    write_file(folder / TEST, json_text(content, indent=2).encode())


def seconds_per_step(recipe: Recipe, steps: int = 5) -> float:
    """How long a training step takes here and now: the median of some, without the first two, which warm up.

    Args:
        recipe: the recipe; its data must be there.
        steps: how many are measured.
    """
    ends: list[float] = []

    def watch(record: Record) -> None:
        ends.append(time.perf_counter())
        if len(ends) > steps + 2:
            raise _Enough

    with tempfile.TemporaryDirectory() as folder, suppress(_Enough):
        train(recipe, Path(folder) / "probe", watch=watch)
    return statistics.median(after - before for before, after in itertools.pairwise(ends[1:]))


class _Enough(Exception):
    """What was to be measured is."""


def main(arguments: Sequence[str]) -> int:
    """Work on one run; what is wrong is the last line on the standard error.

    Args:
        arguments: `train` or `test`, and the folder of the run.

    Returns:
        The exit code: 0, or 1 where it failed; 128 and the signal's number where it was interrupted and saved.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    keep_heap()
    work, folder = arguments
    try:
        recipe = parse_recipe(read_yaml(sys.stdin.read(), "the recipe on the standard input"))
        do_work("test" if work == "test" else "train", recipe, Path(folder))
    except Interrupted as interrupted:
        logger.info("%s", interrupted)
        return 128 + interrupted.signum
    except Exception as error:
        logger.exception("this run failed")
        logger.error("%s", one_line(error) or type(error).__name__)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
