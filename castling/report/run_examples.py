"""What a task has to show of its network, as figures of the report: curves, and pictures beside each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
from PIL import Image, ImageDraw

from castling.measure.eval_mode import eval_mode
from castling.report.plotting import new_figure, save_figure
from castling.report.run_figures import RunFigure
from castling.tasks.task import Batch, Curves, Gallery
from castling.training.evaluation import OnDevice, best_device
from castling.training.saved import CASTLED, open_model

BATCH_SIZE = 16
COLUMNS = 2
MARGIN = 8
Track = Callable[[Iterable[Batch], int], Iterable[Batch]]


@torch.no_grad()
def examine_run(folder: Path, out: Path, track: Track = lambda batches, count: batches) -> list[RunFigure]:
    """Let the task of a run look at its network, castled where it was, on validation pictures.

    Args:
        folder: the run.
        out: the folder for PNG files, made where needed.
        track: shows the progress of so many batches.

    Raises:
        ValueError: for a run without weights.
        OSError: if its pictures are not there.
    """
    saved = open_model(folder / CASTLED if (folder / CASTLED).is_dir() else folder)
    device = best_device()
    network = saved.network.to(device)

    def batches() -> Iterator[Batch]:  # opened only where a task asks for pictures
        loader = saved.task.loader("val", BATCH_SIZE)
        yield from OnDevice(track(loader, len(loader)), device)

    with eval_mode(network):
        shown = saved.task.examine(network, batches())
    figures = []
    for one in shown:
        path = out / f"{one.name}.png"
        drawn = draw_curves(one, path) if isinstance(one, Curves) else draw_gallery(one, path)
        figures.append(RunFigure(drawn, one.title, one.caption))
    return figures


def draw_curves(curves: Curves, path: Path) -> Path:
    """Draw lines with their names."""
    figure = new_figure(5.4, 3.6)
    axes = figure.subplots()
    for number, (name, (right, up)) in enumerate(curves.lines.items()):
        axes.plot(right, up, label=name, linewidth=2.4 if number == 0 else 1.2)
    axes.set(xlabel=curves.x_label, ylabel=curves.y_label, xlim=(0, None), ylim=(0, 1.02))
    axes.legend(frameon=False, fontsize=8)
    return save_figure(figure, path)


def draw_gallery(gallery: Gallery, path: Path) -> Path:
    """Put pictures into rows, each with its line of text above it."""
    pictures = list(gallery.pictures)
    width = max((picture.width for picture, _ in pictures), default=1)
    rows = [pictures[place : place + COLUMNS] for place in range(0, len(pictures), COLUMNS)]
    heights = [max(picture.height for picture, _ in row) + 2 * MARGIN + 12 for row in rows]
    page = Image.new("RGB", (COLUMNS * (width + MARGIN), max(1, sum(heights))), "white")
    draw, top = ImageDraw.Draw(page), 0
    for row, height in zip(rows, heights, strict=True):
        for column, (picture, words) in enumerate(row):
            left = column * (width + MARGIN)
            draw.text((left, top + 2), words, fill="black")
            page.paste(picture, (left, top + MARGIN + 10))
        top += height
    path.parent.mkdir(parents=True, exist_ok=True)
    page.save(path)
    return path
