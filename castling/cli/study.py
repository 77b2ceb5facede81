"""`castling study`: several recipes and seeds as one question, with rows of what they reached."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich import get_console
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from castling.bench.study import Study, load_study
from castling.bench.study_cost import forecast, roughly
from castling.cli import add_speech, say, say_json, say_written
from castling.extras import import_extra
from castling.recipes import study_names
from castling.report.run_text import amount, duration
from castling.report.study_comparison import to_json
from castling.workflows.study import StudyResult, run_study, study_runs
from castling.workflows.study_page import write_page, write_tables
from castling.workflows.study_processes import State, StudyInterrupted, StudyRun
from castling.workflows.study_run import seconds_per_step

RESULTS = Path("benchmarks/results")


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb and its flags."""
    parser = verbs.add_parser(
        "study",
        help="train variants of a recipe with several seeds, and compare them",
        description="Without a name list the studies; with a name and --out train all variants with all seeds, castle "
        "them and write what they reached, or go on with it. The exit code is 1 if a run failed.",
        epilog="Example: castling study kernels --out runs/kernels --jobs 2 --set data.root=DIR",
    )
    add = parser.add_argument
    add("name", nargs="?", metavar="NAME", help="study by name or file")
    add("--out", type=Path, metavar="DIR", help="folder for runs and results; without it the runs are listed")
    add("--seeds", type=int, nargs="+", metavar="N", help="seeds (default: the study's)")
    add("--only", nargs="+", metavar="VARIANT", help="variants to train (default: all)")
    add("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="settings of all runs")
    add("--jobs", type=int, default=1, metavar="N", help="processes at a time, of one thread each (default: 1)")
    add("--probe", action="store_true", help="measure seconds a step of every variant, on its data, and train nothing")
    add_speech(parser, "what came out")
    add("--into", type=Path, nargs="+", metavar="FILE", help="write tables of recorded studies between a file's marks")
    add("--results", type=Path, default=RESULTS, metavar="DIR", help=f"folder of the CSV files (default: {RESULTS})")
    add("--test", action="store_true", help="at the end, evaluate on the test pictures: once, after all choices")
    parser.set_defaults(run=run)


def run(flags: argparse.Namespace) -> int:
    """List studies, show one, or run it."""
    console = get_console()
    if flags.into:
        for path in flags.into:
            write_tables(path, flags.results)
            say_written([path])
        return 0
    if flags.name is None:
        if flags.out is not None or flags.probe:
            raise ValueError("--out and --probe need the name of a study")
        console.width = max(console.width, 110)  # names are never cut
        console.print(_list())
        return 0
    study = load_study(flags.name, flags.set)
    if flags.out is None or flags.probe:
        console.width = max(console.width, 110)
        _show(study, flags, console)
        return 0
    import_extra("matplotlib", "report")  # rather now than after hours
    try:
        result = run_with_progress(study, flags, console)
    except StudyInterrupted as interrupted:
        say(str(interrupted))
        return 128 + interrupted.signum
    for name, reason in result.failed.items():
        say(f"failed: {name}: {reason}")
    if result.rows.exists():
        page, found = write_page(study, flags.out, result)
        say_written([result.rows, result.curves, page])
        say_json(flags, to_json(found))
    return int(bool(result.failed))


def run_with_progress(study: Study, flags: argparse.Namespace, console: Console) -> StudyResult:
    """Run a study and show it: a bar over all runs, and a line for each that ends."""
    shares: dict[str, float] = {}
    total = len(study_runs(study, flags.out, flags.only, flags.seeds))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[at]}"), console=console) as progress:
        bar = progress.add_task(study.name, total=total, at="")

        def watch(run: StudyRun, state: State, share: float) -> None:
            if state != "running":
                console.print(f"{run.name}: {state}", highlight=False)
            shares[run.name] = share
            at = ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if share < 1)
            progress.update(bar, completed=sum(share == 1 for share in shares.values()), at=at)

        return run_study(study, flags.out, flags.only, flags.seeds, flags.jobs, flags.test, watch)


def _list() -> Table:
    """All studies, with what they ask and what they would cost."""
    table = Table("study", "question", "runs", "MACs", title="MACs of training, about: three forward passes a picture")
    count = roughly()
    for name in study_names():
        study = load_study(name)
        cost = [forecast(study, variant, count) for variant in study.variants]
        known = [one.macs * len(study.seeds) for one in cost if one.macs is not None]
        macs = amount(sum(known)) if len(known) == len(cost) else "depends on the data"
        table.add_row(name, study.question.strip(), str(len(study.variants) * len(study.seeds)), macs)
    return table


def _show(study: Study, flags: argparse.Namespace, console: Console) -> None:
    """What a study would run, and what each run would cost."""
    for line in (study.title, study.question.strip(), study.budget):
        console.print(line, highlight=False, markup=False)
    table = Table(
        "variant", "compared with", "steps", "MACs a run", *(["time a run"] if flags.probe else []), "what it is"
    )
    runs = study_runs(study, "", flags.only, flags.seeds)
    total = 0.0
    for run in {run.variant: run for run in runs}.values():
        cost, note = forecast(study, run.variant), study.variants[run.variant].note
        steps = "" if cost.steps is None else f"{cost.steps:,}"
        macs = "" if cost.macs is None else amount(cost.macs)
        measured = []
        if flags.probe:
            seconds = seconds_per_step(run.recipe) * (cost.steps or 1)
            total += seconds * sum(other.variant == run.variant for other in runs)
            measured = [duration(seconds) if cost.steps else f"{seconds:.2g} s a step"]
        table.add_row(run.variant, ", ".join(study.opponents(run.variant)), steps, macs, *measured, note)
    console.print(table)
    if flags.probe and study.pictures:
        console.print(
            f"{len(runs)} runs, {duration(total)} of training in one process; evaluations come on top", highlight=False
        )
    console.print(f"run it: castling study {flags.name} --out DIR", highlight=False, markup=False)
