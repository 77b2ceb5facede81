"""A study in pictures: scores and their spread, differences and their intervals, curves, masks, the paper beside ours.

The trajectories of masks are the paper's figure of non-zeros in auxiliary masks, one panel a variant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from castling.extras import import_extra
from castling.measure.statistics import sample_deviation
from castling.report.plotting import BLUE, GREEN, GREY, RED, new_figure, save_figure, tidy
from castling.report.run_figures import RunFigure, plain, scale_occupancy
from castling.report.run_text import layer_label
from castling.report.study_comparison import Difference, agreement_with_paper, differences
from castling.report.study_data import Points, StudyData, VariantData

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 6.4
LINES = 6  # curves in a panel that can still be told apart
COLOURS = (BLUE, RED, GREEN, "#8a4fa3", "#b07a00", "#2b8a9e")
SAID = {"better": GREEN, "worse": RED, "open": GREY}


def draw_study(study: StudyData, folder: Path) -> list[RunFigure]:
    """Draw whatever a study has numbers for.

    Args:
        study: the study.
        folder: the folder for the PNG files, made where needed.

    Returns:
        The figures in the order of the page.
    """
    figures: list[RunFigure] = []

    def add(name: str, title: str, caption: str, draw: Callable[[Path], Path]) -> None:
        figures.append(RunFigure(draw(folder / f"{name}.png"), title, caption))

    pairs = differences(study)
    curves = [variant for variant in study.measured if _has_lines(variant.curves)]
    gaps = {variant.name: variant.gaps for variant in study.measured if _has_lines(variant.gaps)}
    masks = [variant for variant in study.measured if any(variant.masks.values())]
    with_paper = [variant for variant in study.measured if variant.paper is not None]
    if study.measured:
        caption = "Every seed, and the mean with one standard deviation, on the validation pictures."
        add("scores", study.metric.name, caption, lambda path: draw_scores(study, path))
    if pairs:
        caption = (
            "Means of the differences of equal seeds with 95 % intervals; on the right of zero the first is better."
        )
        add("differences", "Differences", caption, lambda path: draw_differences(study, pairs, path))
    if curves:
        caption = "Means over the seeds at each evaluation, and one standard deviation on either side."
        lines = {variant.name: variant.curves for variant in curves}
        add("curves", "Learning curves", caption, lambda path: draw_curves(lines, _unit(study), path))
    if gaps:
        caption = "What castling would have cost at each evaluation: means over the seeds, and one standard deviation."
        unit = study.metric.difference_unit
        lost = "lost by castling" + (f", {unit}" if unit else "")
        add("gaps", "Castling gap", caption, lambda path: draw_curves(gaps, lost, path))
    if masks:
        caption = (
            "Entries that survive the mask in the fullest head of every layer: the mean over the seeds, and from the "
            "lowest to the highest of them."
        )
        add("masks", "Non-zeros in the auxiliary masks", caption, lambda path: draw_masks(masks, path))
    if len(with_paper) > 1:
        add("paper", "Beside the paper", describe_agreement(study), lambda path: draw_paper(study, with_paper, path))
    return figures


def _has_lines(curves: Mapping[int, Points]) -> bool:
    """Whether there is more than the end of training to draw."""
    return any(len(points) > 1 for points in curves.values())


def draw_scores(study: StudyData, path: Path) -> Path:
    """A line for each variant: a point for each seed, the mean and the spread."""
    variants = study.measured[::-1]
    figure = new_figure(WIDTH, 1.3 + 0.28 * len(variants))
    axes = figure.subplots()
    for place, variant in enumerate(variants):
        values = list(variant.scores.values())
        axes.plot(values, [place] * len(values), "o", color=BLUE, alpha=0.35, markersize=4, markeredgewidth=0)
        axes.errorbar(fmean(values), place, xerr=sample_deviation(values), fmt="D", color=BLUE, markersize=4, capsize=3)
    _name_lines(axes, [variant.name for variant in variants])
    axes.set_xlabel(plain(_unit(study)))
    tidy(axes)
    return save_figure(figure, path)


def draw_differences(study: StudyData, pairs: Sequence[Difference], path: Path) -> Path:
    """A line for each comparison: the mean difference with its interval, and zero."""
    pairs = pairs[::-1]
    figure = new_figure(WIDTH, 1.3 + 0.28 * len(pairs))
    axes = figure.subplots()
    axes.axvline(0, color=GREY, linewidth=1)
    for place, pair in enumerate(pairs):
        found = pair.better_by
        half = None if found.high is None else found.high - found.mean
        axes.errorbar(found.mean, place, xerr=half, fmt="D", color=SAID[pair.said], markersize=4, capsize=3)
    _name_lines(axes, [f"{pair.variant} over {pair.other}" for pair in pairs])
    unit = study.metric.difference_unit
    axes.set_xlabel(plain(f"better by{f', {unit}' if unit else ''}"))
    tidy(axes)
    return save_figure(figure, path)


def draw_curves(lines: Mapping[str, Mapping[int, Points]], label: str, path: Path) -> Path:
    """Numbers of variants by seed, over epochs; some variants a panel.

    Args:
        lines: points of each seed, by variant.
        label: what they are.
        path: the path of the PNG.
    """
    names = list(lines)
    groups = [names[first : first + LINES] for first in range(0, len(names), LINES)]
    figure, panels = _panels(len(groups), 2.9)
    for axes, group in zip(panels, groups, strict=False):
        for name, colour in zip(group, COLOURS, strict=False):
            places, mean, low, high = _band(list(lines[name].values()), spread=True)
            axes.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)
            marker = "o" if len(places) < 30 else ""
            axes.plot(places, mean, color=colour, linewidth=1.5, marker=marker, markersize=3, label=plain(name))
        axes.set(xlabel="epoch", ylabel=plain(label))
        axes.legend(frameon=False, fontsize=8)
        tidy(axes)
    return save_figure(figure, path)


def draw_masks(variants: Sequence[VariantData], path: Path) -> Path:
    """How full masks are over training, a panel for each variant and a line for each layer."""
    figure, panels = _panels(len(variants), 2.3)
    colours = import_extra("matplotlib", "report").colormaps["viridis"]
    for axes, variant in zip(panels, variants, strict=False):
        layers = list(dict.fromkeys(layer for masks in variant.masks.values() for layer in masks))
        shown: list[float] = []
        for index, layer in enumerate(layers):
            places, *bands = _band([masks[layer] for masks in variant.masks.values() if layer in masks])
            mean, low, high = ([100 * share for share in band] for band in bands)
            colour = colours(0.92 * index / max(1, len(layers) - 1))
            axes.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)
            axes.plot(places, mean, color=colour, linewidth=1.4, label=plain(layer_label(layer)))
            shown += [*mean, *high]
        scale_occupancy(axes, shown)
        axes.set_title(plain(variant.name), fontsize=9)
        axes.set_xlabel("training step")
        axes.set_ylabel("surviving, %")
        tidy(axes, thousands=True)
    panels[0].legend(frameon=False, fontsize=8, title="layer", title_fontsize=8)
    return save_figure(figure, path)


def draw_paper(study: StudyData, variants: Sequence[VariantData], path: Path) -> Path:
    """Our means over the paper's figures."""
    figure = new_figure(WIDTH, 3.8)
    axes = figure.subplots()
    for variant in variants:
        values = list(variant.scores.values())
        place = (variant.paper or 0.0, fmean(values))
        axes.errorbar(*place, yerr=sample_deviation(values), fmt="D", color=BLUE, markersize=4, capsize=3)
        axes.annotate(plain(variant.name), place, xytext=(6, 4), textcoords="offset points", fontsize=8)
    axes.set(xlabel=plain(f"the paper: {study.paper_place}"), ylabel=plain(f"ours: {_unit(study)}"))
    axes.margins(x=0.15, y=0.15)
    tidy(axes)
    return save_figure(figure, path)


def describe_agreement(study: StudyData) -> str:
    """How far the order of variants is that of the paper, in a sentence."""
    found = agreement_with_paper(study)
    if found is None or found.correlation is None:
        return "Too few variants have both figures for an order."
    seeds = sorted(found.by_seed.values())
    alone = f", {seeds[0]:.2f} to {seeds[-1]:.2f} of single seeds" if len(seeds) > 1 else ""
    return (
        f"Spearman's rank correlation of {len(found.variants)} means with the paper's figures is "
        f"{found.correlation:.2f}{alone}. Other data, other networks: the order can be compared, the numbers cannot."
    )


def _panels(count: int, height: float) -> tuple[Figure, Sequence[Axes]]:
    """A figure with panels in two columns, or a single one."""
    columns = min(2, count)
    rows = math.ceil(count / columns)
    figure = new_figure(WIDTH, 0.4 + height * rows)
    panels: list[Any] = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in panels[count:]:
        axes.set_visible(False)
    return figure, panels


def _name_lines(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), [plain(name) for name in names])
    axes.set_ylim(-0.7, len(names) - 0.3)


def _unit(study: StudyData) -> str:
    return f"{study.metric.name}, {study.metric.unit}" if study.metric.unit else study.metric.name


def _band(several: Iterable[Points], spread: bool = False) -> tuple[list[float], list[float], list[float], list[float]]:
    """Places at which any line has a point, with the mean there, and its ends: the extremes, or a deviation away."""
    at: dict[float, list[float]] = {}
    for points in several:
        for place, value in points:
            at.setdefault(place, []).append(value)
    places = sorted(at)
    means = [fmean(at[place]) for place in places]
    if spread:
        away = [sample_deviation(at[place]) or 0.0 for place in places]
        low, high = ([mean + sign * one for mean, one in zip(means, away, strict=True)] for sign in (-1, 1))
    else:
        low, high = [min(at[place]) for place in places], [max(at[place]) for place in places]
    return places, means, low, high
