"""How much faster castled networks are, over image and patch size, beside the bound that MACs set.

The paper's tables of throughput over resolution and over patch size as two figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from castling.bench.candidates import patch_of
from castling.bench.models import PATCH_STUDY_SIZE
from castling.bench.results_file import number_in
from castling.models import deit
from castling.report.plotting import BLUE, GREEN, GREY, RED, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = (GREEN, BLUE, RED, "#8a4fa3", "#b07a00", "#2b8a9e", "#5b6b2f", "#b3548a")
MARKERS = "os^Dv"

Row = Mapping[str, Any]


def draw_speedups(rows: Sequence[Row], stem: Path) -> list[Path]:
    """Draw the speed-up over fused softmax attention: over image sizes, and over DeiT's patch sizes at 224 px.

    Args:
        rows: rows of `measure_row`, as numbers or as text; those of single square images are drawn.
        stem: path of the figures without their ending; `-resolution.png` and `-patches.png` are added.

    Returns:
        The figures for which there are rows with times.
    """
    single = [row for row in rows if str(row.get("batch", 1)) == "1" and str(row["size"]).isdigit()]
    measured = [row for row in single if number_in(row, "speedup_over_softmax")]
    over_size = [row for row in measured if int(row["patch"]) == patch_of(str(row["model"]))]
    over_patch = [row for row in measured if row["model"] in deit.SIZES and int(row["size"]) == PATCH_STUDY_SIZE]
    written = []
    if over_size:
        path = stem.with_name(f"{stem.name}-resolution.png")
        written.append(_draw(over_size, "size", "side of the image, px", path))
    if len({row["patch"] for row in over_patch}) > 1:
        path = stem.with_name(f"{stem.name}-patches.png")
        written.append(_draw(over_patch, "patch", f"side of a patch at {PATCH_STUDY_SIZE} px", path))
    return written


def _draw(rows: Sequence[Row], over: str, label: str, path: Path) -> Path:
    """A panel for each engine and number of threads, in it a line for each model."""
    engines = list(dict.fromkeys((str(row["engine"]), str(row["threads"])) for row in rows))
    models = list(dict.fromkeys(str(row["model"]) for row in rows))
    num_columns = min(2, len(engines))
    num_rows = -(-len(engines) // num_columns)
    figure = new_figure(1.6 + 4.2 * num_columns, 1.4 + 3.2 * num_rows)
    panels = figure.subplots(num_rows, num_columns, squeeze=False, sharex=True, sharey=True)
    for axes, engine in zip(panels.flat, engines, strict=False):
        chosen = [row for row in rows if (str(row["engine"]), str(row["threads"])) == engine]
        for index, model in enumerate(models):
            look = {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index // len(COLOURS) % len(MARKERS)]}
            _plot(axes, [row for row in chosen if row["model"] == model], over, short_name(model), look)
        axes.set_title(_title(*engine), fontsize=10)
        axes.set_xlabel(label, fontsize=10)
    for axes in panels.flat[: len(engines)]:  # once all is drawn: they share their limits
        _tidy(axes, sorted({int(row[over]) for row in rows}), invert=over == "patch")
    for axes in panels.flat[len(engines) :]:
        axes.set_visible(False)
    for axes in panels[:, 0]:
        axes.set_ylabel("times faster than fused softmax", fontsize=10)
    handles = {text: line for axes in panels.flat for line, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    (bound,) = panels.flat[0].plot([], [], color=GREY, linestyle="--", linewidth=1)
    figure.legend(
        [*handles.values(), bound],
        [*handles, "bound set by MACs"],
        loc="outside lower center",
        ncols=min(4, 1 + 2 * num_columns),
        frameon=False,
        fontsize=9,
    )
    return save_figure(figure, path)


def _title(engine: str, threads: str) -> str:
    return f"{engine}, 1 thread" if threads == "1" else f"{engine}, {threads} threads"


def _plot(axes: Axes, rows: Sequence[Row], over: str, label: str, look: dict[str, Any]) -> None:
    rows = sorted(rows, key=lambda row: int(row[over]))
    places = [int(row[over]) for row in rows]
    if rows:
        speedups = [number_in(row, "speedup_over_softmax") or float("nan") for row in rows]
        bounds = [number_in(row, "mac_bound") or float("nan") for row in rows]
        axes.plot(places, speedups, linewidth=1.6, markersize=4, label=label, **look)
        # The mark shows the bound where there is one size only, and so no line.
        axes.plot(places, bounds, "--", linewidth=1, color=look["color"], alpha=0.7, marker="_", markersize=9)


def _tidy(axes: Axes, places: Sequence[int], invert: bool) -> None:
    """Logarithmic axes with plain numbers; small patches, which mean many tokens, on the right."""
    axes.set(xscale="log", yscale="log")
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0.5), max(high, 2))
    axes.axhline(1, color=GREY, linewidth=0.8)
    axes.set_xticks(places, [f"{place}" for place in places])
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.yaxis.set_minor_formatter(lambda value, _: f"{value:,.10g}" if f"{value:e}"[0] in "25" else "")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e6e6e6", linewidth=0.7, which="both")
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9, which="both", labelbottom=True)
    axes.margins(x=0.08)
    if invert and not axes.xaxis_inverted():
        axes.invert_xaxis()


def short_name(model: str) -> str:
    """A model's name without what all of them share.

    Example:
        >>> short_name("castling_deit_tiny_patch16_224")
        'deit_tiny'
    """
    return model.removeprefix("castling_").removesuffix("_patch16_224")
