"""`castling report`: a run folder as one HTML page, with its figures as PNG."""

from __future__ import annotations

import argparse
import logging
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from torch import nn

from castling.conversion import castle
from castling.report.run_data import RunData, lookup, measure_run, read_run
from castling.report.run_page import write_report
from castling.tasks import TASKS
from castling.training.saved import open_model

SCALES = (1, 2, 4, 8)  # times the side of the images it was trained on
LARGEST = 1024  # pixels, unless it was trained on larger images or --sizes says otherwise

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
    parser.add_argument("--title", metavar="TEXT", help="headline (default: model and data)")
    parser.add_argument("--sizes", type=int, nargs="+", metavar="PX", help="sides of the images to measure speed at")
    parser.add_argument("--measure-again", action="store_true", help="measure speed even if speed.json is there")
    parser.add_argument("--no-speed", action="store_true", help="do not measure speed; what is there is shown")
    parser.set_defaults(run=run)


def run(flags: argparse.Namespace) -> None:
    """Measure the first run where needed, then write report.html and figures/."""
    first, *others = [read_run(folder) for folder in flags.runs]
    if not flags.no_speed and not first.is_baseline:
        first = _with_speed(first, flags)
    console = Console()
    for path in write_report([first, *others], flags.out or first.folder, flags.title):
        console.print(f"wrote {path}", highlight=False, markup=False, soft_wrap=True)


def _with_speed(run: RunData, flags: argparse.Namespace) -> RunData:
    """The run with its cost over resolution: as measured before, unless that or other sizes are asked for."""
    measured = {row["size"] for row in (run.speed or {}).get("rows", [])}
    if measured and not flags.measure_again and measured == set(flags.sizes or measured):
        return run
    try:
        sizes = flags.sizes or _default_sizes(run)
        castled, softmax = _models_of(run.folder)
    except (ValueError, OSError) as error:  # a run that has no weights yet still has a page
        logger.warning("speed is not measured: %s", error)
        return run
    with Progress() as progress:
        # Time grows at least with the area.
        task = progress.add_task("Measuring speed", total=sum(size**2 for size in set(sizes)))
        speed = measure_run(
            run.folder,
            castled,
            softmax,
            sizes,
            channels=lookup(run.config, "data.channels") or 3,
            on_size=lambda size: progress.advance(task, size**2),
        )
    return replace(run, speed=speed)


def _default_sizes(run: RunData) -> list[int]:
    """The size of training and its multiples.

    Raises:
        ValueError: if the configuration does not say it.
    """
    size = lookup(run.config, "data.image_size")
    if not isinstance(size, int) or size < 1:
        raise ValueError(f"data.image_size of {run.folder} is {size!r}, not a number of pixels; give --sizes")
    return [scale * size for scale in SCALES if scale == 1 or scale * size <= LARGEST]


def _models_of(run: Path) -> tuple[nn.Module, nn.Module]:
    """The castled model of a run, and its softmax twin."""
    saved = open_model(run)
    settings = saved.recipe.settings
    twin = replace(settings, model=replace(settings.model, kernel="softmax"))
    return castle(saved.model), TASKS[saved.recipe.task].rebuild(twin, saved.labels).eval()
