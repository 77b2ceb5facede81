"""One look for all figures, drawn without a display."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from castling.extras import import_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RED, GREEN, BLUE, GREY = "#c8321f", "#22873a", "#2a5db0", "#7a7a7a"


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of this size in inches.

    Raises:
        ImportError: if matplotlib is missing; names the extra.
    """
    import_extra("matplotlib", "report").use("Agg")
    return import_extra("matplotlib.figure", "report").Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG, making its folder where needed; returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path


def tidy(axes: Axes, thousands: bool = False) -> None:
    """No frame above and on the right, a faint grid, digits in groups."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9)
    axes.xaxis.label.set_fontsize(10)
    axes.yaxis.label.set_fontsize(10)
    if thousands:
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
