"""Runs of a study worked on: in processes of one thread each, so many at a time, or one after the other in this one.

One that fails stops no other; a signal stops all of them, with their state saved.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from castling.measure.plain_json import parse_json
from castling.sentences import one_line
from castling.training import Interrupted
from castling.training.recipe import Recipe, recipe_text
from castling.training.records import Record, StepRecord
from castling.training.signals import StopRequest
from castling.workflows.study_run import Work, do_work

State = Literal["running", "done", "tested", "failed"]
POLL = 0.5  # seconds between two looks at the processes

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


Watch = Callable[[StudyRun, State, float], None]
Ended = Callable[[StudyRun, str | None], None]


class StudyInterrupted(Exception):
    """A study was asked to stop; its runs have saved their state.

    Args:
        signum: the signal.
    """

    def __init__(self, signum: int) -> None:
        super().__init__("interrupted; what was trained is saved, and the same command goes on")
        self.signum = signum


def one_by_one(work: Work, runs: Sequence[StudyRun], stop: StopRequest, ended: Ended, watch: Watch) -> None:
    """Work on one run after the other, in this process."""
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


def in_processes(
    work: Work, runs: Sequence[StudyRun], jobs: int, logs: Path, stop: StopRequest, ended: Ended, watch: Watch
) -> None:
    """Work on so many runs at a time, each in a process of one thread; whatever happens, none is left behind."""
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
