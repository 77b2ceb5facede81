"""A study run: a grid of ordinary run folders, each in a process of its own, and its rows as soon as they are known.

What is done stays done: the same call goes on where an earlier one ended, however that was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from castling.bench.results_file import open_results
from castling.bench.study import Study, check_seeds
from castling.bench.study_rows import CURVE_KEY, KEY, TEST, append_new, curve_rows, is_done, is_recorded, result_rows
from castling.config import check_choice
from castling.training import RunFolder
from castling.training.recipe import first_difference
from castling.training.signals import StopRequest
from castling.workflows.study_processes import State, StudyRun, Watch, in_processes, one_by_one
from castling.workflows.study_run import Work


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
        if reason is not None:
            result.failed[run.name] = reason
        elif not is_recorded(result.rows, run.variant, run.seed, run.folder):
            append_new(result.curves, curve_rows(run.variant, run.seed, run.folder), CURVE_KEY)
            append_new(result.rows, result_rows(run.variant, run.seed, run.folder), KEY)
        watch(run, state if reason is None else "failed", 1.0)

    def work_through(work: Work, wanted: Sequence[StudyRun]) -> None:
        ends = partial(ended, state="done" if work == "train" else "tested")
        with StopRequest() as stop:
            if jobs:
                in_processes(work, wanted, jobs, out / "logs", stop, ends, watch)
            else:
                one_by_one(work, wanted, stop, ends, watch)

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
