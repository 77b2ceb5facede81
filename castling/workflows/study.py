"""A study run: a grid of ordinary run folders, each in a process of its own, and its rows as soon as they are known.

What is done stays done: the same call goes on where an earlier one ended, however that was.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from castling.bench.results_file import open_results
from castling.bench.study import Study, check_seeds
from castling.bench.study_rows import CURVE_KEY, KEY, TEST, append_new, curve_rows, is_done, result_rows
from castling.config import check_choice
from castling.measure.plain_json import parse_json
from castling.sentences import one_line
from castling.training import Interrupted, RunFolder
from castling.training.recipe import Recipe, first_difference, recipe_text
from castling.training.records import Record, StepRecord
from castling.training.signals import StopRequest
from castling.workflows.study_run import Work, do_work

State = Literal["running", "done", "tested", "failed"]
POLL = 0.5  # seconds between two looks at the processes
LOGS = "logs"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StudyRun:
    """One run of a study.

    Args:
        variant: its variant.
        seed: its seed.
        folder: its folder.
        recipe: its recipe.
    """

    variant: str
    seed: int
    folder: Path
    recipe: Recipe

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.name


@dataclass
class StudyResult:
    """What a study has come to.

    Args:
        rows: the CSV file of what runs reached.
        curves: the CSV file of what they reached on the way.
        done: the runs that are done, by name.
        failed: the reasons of those that failed, by name.
    """

    rows: Path
    curves: Path
    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


class StudyInterrupted(Exception):
    """A study was asked to stop; its runs have saved their state.

    Args:
        signum: the signal.
    """

    def __init__(self, signum: int) -> None:
        super().__init__("interrupted; what was trained is saved, and the same command goes on")
        self.signum = signum


Watch = Callable[[StudyRun, State, float], None]
Ended = Callable[[StudyRun, str | None], None]


def study_runs(
    study: Study, out: Path | str, only: Sequence[str] | None = None, seeds: Sequence[int] | None = None
) -> list[StudyRun]:
    """The runs of a study: all variants with the first seed, then with the next.

    Args:
        study: the study.
        out: the folder of the run folders.
        only: names of variants; None for all.
        seeds: the seeds; None for the study's own.

    Raises:
        ValueError: for a variant that there is not, seeds that are none, or settings that make no recipe.
    """
    for name in only or ():
        check_choice("variant", name, study.variants)
    check_seeds(study.seeds if seeds is None else seeds)
    return [
        StudyRun(variant, seed, Path(out) / f"{variant}-{seed}", study.run_recipe(variant, seed))
        for seed in (study.seeds if seeds is None else seeds)
        for variant in study.variants
        if only is None or variant in only
    ]


def run_study(
    study: Study,
    out: Path | str,
    only: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    jobs: int = 1,
    test: bool = False,
    watch: Watch = lambda run, state, share: None,
) -> StudyResult:
    """Train, castle and evaluate what is not done yet, and write rows.

    Args:
        study: the study.
        out: the folder for runs and results, made where needed.
        only: names of variants; None for all.
        seeds: the seeds; None for the study's own.
        jobs: processes at a time, of one thread each; 0 for none beside this one, which keeps its threads.
        test: whether the runs that are done look at the data's own held-out pictures, at the end.
        watch: a function that is told of every run, its state and its share of training that is done.

    Returns:
        The files of rows, and which runs are done or failed.

    Raises:
        ValueError: for a variant that there is not, or a test where the data has no pictures for one.
        StudyInterrupted: after SIGTERM or Ctrl-C, with the state of runs saved.
    """
    if jobs < 0:
        raise ValueError(f"jobs are processes, 0 or more; got {jobs}")
    out, runs = Path(out), study_runs(study, out, only, seeds)
    if test:
        for run in runs:
            run.recipe.make_task().on_test()
    rows, curves = (open_results(out, name, resume=True) for name in (study.name, f"{study.name}_curves"))
    result = StudyResult(rows, curves)

    def ended(run: StudyRun, reason: str | None, state: State = "done") -> None:
        if reason is None:
            append_new(result.curves, curve_rows(run.variant, run.seed, run.folder), CURVE_KEY)
            append_new(result.rows, result_rows(run.variant, run.seed, run.folder), KEY)
        else:
            result.failed[run.name] = reason
        watch(run, state if reason is None else "failed", 1.0)

    def work_through(work: Work, wanted: Sequence[StudyRun]) -> None:
        ends = partial(ended, state="done" if work == "train" else "tested")
        with StopRequest() as stop:
            if jobs:
                _in_processes(work, wanted, jobs, out / LOGS, stop, ends, watch)
            else:
                _in_here(work, wanted, stop, ends, watch)

    missing = []
    for run in runs:
        there = RunFolder(run.folder)
        if there.is_run() and (difference := first_difference(run.recipe, there.recipe())):
            ended(run, f"{run.folder} holds a run of other settings: {difference}")
        elif is_done(run.folder):
            ended(run, None)
        else:
            missing.append(run)
    work_through("train", missing)
    if test:
        trained = [run for run in runs if run.name not in result.failed]
        work_through("test", [run for run in trained if not (run.folder / TEST).is_file()])
    result.done = [run.name for run in runs if run.name not in result.failed]
    return result


def _in_here(work: Work, runs: Sequence[StudyRun], stop: StopRequest, ended: Ended, watch: Watch) -> None:
    """One run after the other in this process."""
    for run in runs:

        def on_record(record: Record, run: StudyRun = run) -> None:
            if isinstance(record, StepRecord):
                watch(run, "running", (record.step + 1) / record.num_steps)

        try:
            do_work(work, run.recipe, run.folder, on_record)
        except Interrupted as interrupted:
            raise StudyInterrupted(interrupted.signum) from interrupted
        except Exception as error:
            logger.warning("%s failed", run.name, exc_info=True)
            ended(run, one_line(error) or type(error).__name__)
        else:
            ended(run, None)
        if stop.signum:
            raise StudyInterrupted(stop.signum)


def _in_processes(
    work: Work, runs: Sequence[StudyRun], jobs: int, logs: Path, stop: StopRequest, ended: Ended, watch: Watch
) -> None:
    """So many runs at a time, each in a process of one thread; whatever happens, none of them is left behind."""
    waiting, running = list(runs), dict[subprocess.Popen[bytes], StudyRun]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                run = waiting.pop(0)
                watch(run, "running", 0.0)
                running[_start(work, run, logs)] = run
            time.sleep(POLL)
            if stop.signum:
                raise StudyInterrupted(stop.signum)
            for process, run in list(running.items()):
                code = process.poll()
                if code is None:
                    watch(run, "running", trained_share(run.folder))
                    continue
                del running[process]
                ended(run, None if code == 0 else _reason(code, logs / f"{run.name}.txt"))
    finally:
        for process in running:
            process.terminate()  # training saves its state on it; Ctrl-C in a terminal has told it already
        for process in running:
            process.wait()


def _start(work: Work, run: StudyRun, logs: Path) -> subprocess.Popen[bytes]:
    logs.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "castling.workflows.study_run", work, str(run.folder)]
    with (logs / f"{run.name}.txt").open("ab") as log:
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin:  # one that cannot even begin says so by its exit code
        process.stdin.write(recipe_text(run.recipe).encode())
    return process


def _reason(code: int, log: Path) -> str:
    """Why a process ended, as its last line has it."""
    lines = log.read_text(errors="replace").split("\n") if log.is_file() else []
    last = next((line for line in reversed(lines) if line.strip()), "it said nothing")
    killed = f"killed by signal {-code}; " if code < 0 else ""
    return f"{killed}{one_line(last)} (all of it is in {log})"


def trained_share(folder: Path) -> float:
    """The share of a run's training that is done, as its log has it."""
    log = folder / "log.jsonl"
    lines = log.read_bytes().splitlines() if log.is_file() else []
    for line in reversed(lines):
        with suppress(ValueError, KeyError, TypeError):  # a line that is being written
            record = parse_json(line, log)
            return float((record["step"] + 1) / record["num_steps"])
    return 0.0
