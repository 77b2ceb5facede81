"""What a task has to show of its network, as figures of the report: lines, pictures, tables in colours, bars."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
from PIL import Image, ImageDraw

from castling.measure.eval_mode import eval_mode
from castling.report.plotting import BLUE, new_figure, save_figure
from castling.report.run_figures import RunFigure, plain
from castling.tasks.exhibits import Bars, Curves, Exhibit, Gallery, Heatmap
from castling.tasks.task import Batch
from castling.training.evaluation import OnDevice, best_device
from castling.training.saved import CASTLED, open_model

BATCH_SIZE = 16
COLUMNS = 2
MARGIN = 8
FULL_SIZE, MOST_NUMBERS = 20, 30  # rows up to which text is large, and fields have numbers
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
        figures.append(RunFigure(draw_exhibit(one, out / f"{one.name}.png"), one.title, one.caption))
    return figures


def draw_exhibit(exhibit: Exhibit, path: Path) -> Path:
    """Draw whatever it is; returns the path."""
    if isinstance(exhibit, Curves):
        return draw_curves(exhibit, path)
    if isinstance(exhibit, Heatmap):
        return draw_heatmap(exhibit, path)
    return draw_bars(exhibit, path) if isinstance(exhibit, Bars) else draw_gallery(exhibit, path)


def draw_curves(curves: Curves, path: Path) -> Path:
    """Draw lines with their names."""
    figure = new_figure(5.4, 3.6)
    axes = figure.subplots()
    for number, (name, (right, up)) in enumerate(curves.lines.items()):
        axes.plot(right, up, label=name, linewidth=2.4 if number == 0 else 1.2)
    axes.set(xlabel=curves.x_label, ylabel=curves.y_label, xlim=(0, None), ylim=(0, 1.02))
    axes.legend(frameon=False, fontsize=8)
    return save_figure(figure, path)


def draw_heatmap(table: Heatmap, path: Path) -> Path:
    """Draw a table in colours; its fields have numbers, in percent, where they fit."""
    most = max(len(table.rows), len(table.columns))
    side = min(max(5.4, 0.32 * most), 16.0)
    figure = new_figure(side, side)
    axes = figure.subplots()
    axes.imshow(table.values, cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    size = 8 if most <= FULL_SIZE else 6
    axes.set_xticks(range(len(table.columns)), [plain(name) for name in table.columns], rotation=90, fontsize=size)
    axes.set_yticks(range(len(table.rows)), [plain(name) for name in table.rows], fontsize=size)
    axes.set(xlabel=table.column_title, ylabel=table.row_title)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    for row, values in enumerate(table.values if most <= MOST_NUMBERS else ()):
        for column, value in enumerate(values):
            if math.isfinite(value) and round(100 * value):
                colour = "white" if value > 0.5 else "black"
                axes.text(column, row, f"{100 * value:.0f}", ha="center", va="center", color=colour, fontsize=size - 1)
    return save_figure(figure, path)


def draw_bars(bars: Bars, path: Path) -> Path:
    """Draw bars that lie, each with its name on the left and its number, in percent, on the right."""
    figure = new_figure(5.4, max(1.6, 0.8 + 0.2 * len(bars.values)))
    axes = figure.subplots()
    places, values = range(len(bars.values)), list(bars.values.values())
    axes.barh(places, values, color=BLUE, height=0.75)
    axes.set_yticks(places, [plain(name) for name in bars.values], fontsize=8)
    axes.set(xlabel=bars.label, xlim=(0, 1.1), ylim=(len(values) - 0.4, -0.6))
    axes.spines[["top", "right"]].set_visible(False)
    for place, value in zip(places, values, strict=True):
        axes.text(value + 0.01, place, f"{100 * value:.1f}", va="center", fontsize=7)
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
