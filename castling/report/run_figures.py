"""A run in pictures: its deciding metric, loss, how full the auxiliary masks are, and the cost over resolution.

The trajectory of occupancy is the paper's figure of non-zeros in auxiliary masks, for every layer and head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from castling.extras import import_extra
from castling.report.plotting import BLUE, GREEN, GREY, RED, new_figure, tidy
from castling.report.run_data import CASTLED, SOFTMAX, RunData, Side, occupancy_trajectories, or_nan
from castling.report.run_text import (
    before_castling,
    describe_cost,
    describe_loss,
    describe_metric,
    describe_occupancy,
    layer_label,
    metric_name,
    num_tokens_at,
    run_labels,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 5.4  # inches; text of 9 points is then still read on a telephone
DPI = 216  # twice the width at which the page shows a figure
OTHERS = ("#8a4fa3", "#b07a00", "#2b8a9e", GREY)  # runs beside the first, unless they are softmax
WIDE_RANGE = 20.0  # largest over smallest from which a linear axis hides the small ones


@dataclass(frozen=True)
class RunFigure:
    """A figure of the page.

    Args:
        path: the path of the PNG.
        title: a few words.
        caption: what is seen.
    """

    path: Path
    title: str
    caption: str


def draw_run(runs: Sequence[RunData], folder: Path) -> list[RunFigure]:
    """Draw whatever the first run has data for; the others stand beside it where they have the same.

    Args:
        runs: one run or more.
        folder: the folder for the PNG files, made where needed.

    Returns:
        The figures in the order of the page.
    """
    run = runs[0]
    trajectories = occupancy_trajectories(run)
    figures: list[RunFigure] = []

    def add(name: str, title: str, caption: str, draw: Callable[[Path], Path]) -> None:
        figures.append(RunFigure(draw(folder / f"{name}.png"), title, caption))

    if run.evals:
        add("metric", metric_name(run), describe_metric(runs), lambda path: draw_metric(runs, path))
    if run.steps:
        add("loss", "Loss", describe_loss(run), lambda path: draw_loss(runs, path))
    if trajectories:
        caption = describe_occupancy(trajectories)
        add("occupancy", "Non-zeros in the auxiliary masks", caption, lambda path: draw_occupancy(run, path))
    if run.speed and run.speed.get("rows"):
        add("cost", "Cost over resolution", describe_cost(run), lambda path: draw_cost(run, path))
    return figures


def draw_metric(runs: Sequence[RunData], path: Path) -> Path:
    """The deciding metric over epochs, with the branch and castled, for every run."""
    figure = new_figure(WIDTH, 3.9)
    axes = figure.subplots()
    for run, label, colour in zip(runs, run_labels(runs), _colours(runs), strict=True):
        prefix = f"{label}: " if len(runs) > 1 else ""
        castled_colour = GREEN if run is runs[0] else colour
        marker = "o" if len(run.evals) <= 40 else ""
        # Where the two agree, the thin line lies on the wide one.
        full: dict[str, Any] = {"color": colour, "linewidth": 4.5, "alpha": 0.4, "solid_capstyle": "round"}
        thin: dict[str, Any] = {"color": castled_colour, "linewidth": 1.5, "marker": marker, "markersize": 3}
        if run.is_baseline:
            _plot_metric(axes, run, "model", f"{prefix}softmax", {"color": colour, "linewidth": 1.5, "linestyle": "--"})
            continue
        _plot_metric(axes, run, "model", prefix + before_castling(run), full)
        _plot_metric(axes, run, "castled", f"{prefix}castled", thin)
    unit = runs[0].metric.unit if runs[0].metric else ""
    label = f"{metric_name(runs[0])}, {unit}" if unit else metric_name(runs[0])
    axes.set(xlabel="epoch", ylabel=plain(label))
    axes.locator_params(axis="x", integer=True)
    tidy(axes)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return _save(figure, path)


def draw_loss(runs: Sequence[RunData], path: Path) -> Path:
    """The training loss over steps, as logged and as a running mean, for every run."""
    figure = new_figure(WIDTH, 3.9)
    axes = figure.subplots()
    shown: list[float] = []
    for run, label, colour in zip(runs, run_labels(runs), _colours(runs), strict=True):
        steps = [record.step for record in run.steps]
        losses = [or_nan(record.loss) for record in run.steps]
        smooth = _running_mean(losses, max(1, len(losses) // 40))
        axes.plot(steps, losses, color=colour, linewidth=0.8, alpha=0.3)
        axes.plot(steps, smooth, color=colour, linewidth=1.8, label=plain(label))
        shown += [loss for loss in smooth if math.isfinite(loss)]
    if shown and 0 < min(shown) < max(shown) / WIDE_RANGE:
        _log_scale(axes)
    axes.set(xlabel="training step", ylabel="training loss")
    tidy(axes, thousands=True)
    if len(runs) > 1:
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return _save(figure, path)


def draw_occupancy(run: RunData, path: Path) -> Path:
    """Occupancy of every layer's mask over training steps, above the threshold that cuts it.

    Raises:
        ValueError: if the run logged no occupancy, as a softmax run.
    """
    trajectories = occupancy_trajectories(run)
    if not trajectories:
        raise ValueError(f"{run.folder} logged no occupancy: there is no auxiliary branch to draw")
    thresholds = [(record.step, record.threshold) for record in run.steps if record.threshold is not None]
    figure = new_figure(WIDTH, 5.2)
    panels = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1)) if thresholds else [figure.subplots()]
    axes = panels[0]
    colours = import_extra("matplotlib", "report").colormaps["viridis"]
    for index, layer in enumerate(trajectories):
        colour = colours(0.92 * index / max(1, len(trajectories) - 1))  # the palest yellow is lost on white
        mean, low, high = ([100 * share for share in shares] for shares in (layer.mean, layer.low, layer.high))
        axes.fill_between(layer.steps, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.plot(layer.steps, mean, color=colour, linewidth=1.6, label=plain(layer_label(layer.layer)))
    scale_occupancy(axes, [100 * share for layer in trajectories for share in (*layer.mean, max(layer.high))])
    axes.set_ylabel("entries that survive the mask, %")
    if thresholds:
        panels[1].plot(*zip(*thresholds, strict=True), color=GREY, linewidth=1.6, drawstyle="steps-post")
        values = [value for _, value in thresholds]
        if 0 < min(values) < max(values) / WIDE_RANGE:
            _log_scale(panels[1])
        panels[1].set_ylabel("threshold")
    for panel in panels:
        tidy(panel, thousands=True)
    panels[-1].set_xlabel("training step")
    num_columns = 1 + (len(trajectories) - 1) // 24
    figure.legend(loc="outside right upper", title="layer", ncols=num_columns, frameon=False, fontsize=9)
    figure.align_ylabels()
    return _save(figure, path)


def draw_cost(run: RunData, path: Path) -> Path:
    """MACs and time over the side of the image, castled and softmax, with their ratio at every size.

    Raises:
        ValueError: if no speed was measured.
    """
    rows = (run.speed or {}).get("rows")
    if not rows:
        raise ValueError(f"{run.folder} has no measured speed to draw")
    sizes = [row["size"] for row in rows]
    figure = new_figure(WIDTH, 5.2)
    panels = figure.subplots(2, 1, sharex=True)
    unit, letter = (1e9, "G") if rows[-1]["macs"][SOFTMAX] >= 1e10 else (1e6, "M")
    costs = (("macs", unit, f"{letter} MACs per image"), ("milliseconds", 1, "milliseconds per image"))
    for axes, (key, unit, label) in zip(panels, costs, strict=True):
        for name, colour, legend in ((SOFTMAX, RED, "softmax twin"), (CASTLED, GREEN, "castled")):
            axes.plot(sizes, [row[key][name] / unit for row in rows], "o-", color=colour, markersize=4, label=legend)
        for row in rows:
            values = [row[key][name] for name in (SOFTMAX, CASTLED)]
            position: dict[str, Any] = {"xytext": (0, 7), "textcoords": "offset points", "ha": "center", "va": "bottom"}
            text = f"{values[0] / values[1]:.1f}x"
            axes.annotate(text, (row["size"], max(values) / unit), fontsize=9, fontweight="bold", **position)
        axes.set(xscale="log", ylabel=label)
        _log_scale(axes)
        axes.margins(x=0.08, y=0.2)
        tidy(axes)
    panels[0].legend(frameon=False, fontsize=9, loc="upper left")
    tokens = [num_tokens_at(run, size) for size in sizes]
    labels = [f"{size}" + (f"\n{count:,}" if count else "") for size, count in zip(sizes, tokens, strict=True)]
    panels[1].set_xticks(sizes, labels)
    panels[1].set_xticks([], minor=True)
    panels[1].set_xlabel("side of the image, px" + (", and tokens" if all(tokens) else ""))
    figure.align_ylabels()
    return _save(figure, path)


def _plot_metric(axes: Axes, run: RunData, side: Side, label: str, look: dict[str, Any]) -> None:
    """The deciding metric of one side, as it is shown."""
    found = [(record.epoch, getattr(record, side)[0]) for record in run.evals if getattr(record, side)]
    if found:
        scores = [metric.scale * metric.value for _, metric in found]
        axes.plot([epoch for epoch, _ in found], scores, label=plain(label), **look)


def scale_occupancy(axes: Axes, values: list[float]) -> None:
    """An axis on which 0.1 % and exactly 0 both show: linear around zero, logarithmic above where needed."""
    above = [value for value in values if value > 0]
    if not above:
        axes.set_ylim(-0.05, 1)
        axes.set_yticks([0])
        said = "The branch never opened:\nevery mask was empty at every logged step."
        axes.text(0.5, 0.5, said, transform=axes.transAxes, ha="center", va="center", color=GREY)
        return
    largest, smallest = max(above), max(min(above), max(above) * 1e-4)
    if largest < WIDE_RANGE * smallest:
        axes.set_ylim(bottom=-0.03 * largest)
        return
    decades = range(math.floor(math.log10(smallest)), math.ceil(math.log10(largest)) + 1)
    linear = 10.0 ** decades[0]
    axes.set_yscale("symlog", linthresh=linear, linscale=0.5)
    axes.set_yticks([0, *(10.0**decade for decade in decades)])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylim(-0.15 * linear, 1.6 * largest)


def _log_scale(axes: Axes) -> None:
    """A logarithmic axis with plain numbers: 0.1 rather than a power of ten."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")


def _colours(runs: Sequence[RunData]) -> list[str]:
    others = iter(OTHERS * len(runs))
    return [RED if run.is_baseline else BLUE if run is runs[0] else next(others) for run in runs]


def _running_mean(values: Sequence[float], window: int) -> list[float]:
    """Mean of the finite values in the window that ends at each."""
    finite = [math.isfinite(value) for value in values]
    sums = [0.0, *accumulate(value if good else 0.0 for value, good in zip(values, finite, strict=True))]
    counts = [0, *accumulate(finite)]
    spans = [(max(0, end - window), end) for end in range(1, len(values) + 1)]
    return [
        (sums[end] - sums[start]) / (counts[end] - counts[start]) if counts[end] > counts[start] else math.nan
        for start, end in spans
    ]


def plain(text: str) -> str:
    """Text that matplotlib takes as it is: a dollar begins a formula, a leading underscore hides a label."""
    return text.replace("$", r"\$") if not text.startswith("_") else " " + text.replace("$", r"\$")


def _save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI)
    return path
