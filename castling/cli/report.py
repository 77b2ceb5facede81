"""`castling report`: a run folder as one HTML page, with its figures as PNG."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from rich import get_console
from rich.console import Console
from rich.progress import Progress, track

from castling.cli import add_speech, say_json, say_written
from castling.report.run_data import RunData, read_run
from castling.report.run_examples import examine_run
from castling.report.run_figures import RunFigure
from castling.report.run_page import write_report
from castling.report.run_speed import default_sizes, measure_run
from castling.tasks.task import Batch

logger = logging.getLogger(__name__)


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb and its flags."""
    parser = verbs.add_parser(
        "report",
        help="write a run as an HTML page with figures",
        description="Write one HTML page that needs nothing but itself, and its figures as PNG, from run folders.",
        epilog="Example: castling report runs/digits runs/digits-softmax",
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run folder; further ones stand beside it")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for the page (default: the first RUN)")
    parser.add_argument("--title", metavar="TEXT", help="headline (default: model and task)")
    parser.add_argument("--sizes", type=int, nargs="+", metavar="PX", help="sides of the images to measure speed at")
    parser.add_argument("--measure-again", action="store_true", help="measure speed even if speed.json is there")
    parser.add_argument("--no-speed", action="store_true", help="do not measure speed; what is there is shown")
    parser.add_argument("--no-examples", action="store_true", help="do not let the network look at pictures again")
    add_speech(parser, "the files, and what was measured of speed")
    parser.set_defaults(run=run)


def run(flags: argparse.Namespace) -> None:
    """Measure the first run where needed, then write report.html and figures/."""
    first, *others = [read_run(folder) for folder in flags.runs]
    console = get_console()
    if not flags.no_speed and not first.is_baseline:
        first = with_speed(first, console, flags.sizes, flags.measure_again)
    out = flags.out or first.folder
    examined = [] if flags.no_examples else examine(first, console, out / "figures")
    written = write_report([first, *others], out, flags.title, examined)
    say_written(written)
    say_json(flags, {"files": [str(path) for path in written], "speed": first.speed})


def examine(run: RunData, console: Console, out: Path) -> list[RunFigure]:
    """What the run's task has to show; nothing where its weights or its pictures are gone."""

    def tracked(batches: Iterable[Batch], count: int) -> Iterable[Batch]:
        return track(batches, "Looking at pictures", total=count, console=console, transient=True)

    try:
        return examine_run(run.folder, out, tracked)
    except (ImportError, OSError, ValueError) as error:
        logger.warning("no examples are shown: %s", error)
        return []


def with_speed(run: RunData, console: Console, sizes: Sequence[int] | None = None, again: bool = False) -> RunData:
    """The run with its cost over resolution: as measured before, unless that or other sizes are asked for."""
    measured = {row["size"] for row in (run.speed or {}).get("rows", [])}
    if measured and not again and measured == set(sizes or measured):
        return run
    sizes = sizes or default_sizes(run.image_size)
    with Progress(console=console) as progress:
        # Time grows at least with the area.
        bar = progress.add_task("Measuring speed", total=sum(size**2 for size in set(sizes)))
        try:
            speed = measure_run(run.folder, sizes, lambda size: progress.advance(bar, size**2))
        except (ValueError, OSError) as error:  # a run that has no weights yet still has a page
            logger.warning("speed is not measured: %s", error)
            return run
    return replace(run, speed=speed)
