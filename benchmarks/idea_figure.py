"""The picture at the top of the README: what a Castling block computes while training, and what is left of it.

python benchmarks/idea_figure.py docs/idea.png
"""

from __future__ import annotations

import sys
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

BLUE, GREEN, RED, GREY = "#2f6db3", "#2e8b57", "#b5452c", "#888888"


def box(axes: Axes, x: float, y: float, text: str, colour: str, dashed: bool = False, width: float = 3.1) -> None:
    """A rounded box around its centre."""
    style = {"linestyle": "--"} if dashed else {}
    patch = FancyBboxPatch(
        (x - width / 2, y - 0.36), width, 0.72, "round,pad=0.05", fc="white", ec=colour, linewidth=1.8, **style
    )
    axes.add_patch(patch)
    axes.text(x, y, text, ha="center", va="center", fontsize=8.6, color="#222222")


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str = GREY) -> None:
    """An arrow between two points."""
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=11, color=colour, linewidth=1.3))


def block(axes: Axes, title: str, castled: bool) -> None:
    """One form of the block, from the tokens below to the output above."""
    axes.set(xlim=(-0.2, 10.2), ylim=(-0.3, 5.4))
    axes.axis("off")
    axes.set_title(title, fontsize=11.5, fontweight="bold")
    box(axes, 5, 0.3, "N tokens as q, k, v", GREY)
    parts = [
        (r"$\frac{1}{2}V+\frac{1}{\pi}\,Q\,(K^\top V)$" + "\nlinear in N", GREEN),
        ("local convolution\nlinear in N", BLUE),
        ("masked softmax\nN x N, mask empties", RED),
    ]
    places = (3.1, 6.9) if castled else (1.6, 5.0, 8.4)
    for x, (text, colour) in zip(places, parts, strict=False):
        box(axes, x, 2.5, text, colour, dashed=colour == RED)
        arrow(axes, (5 + (x - 5) * 0.25, 0.75), (x, 2.05))
        arrow(axes, (x, 2.95), (5 + (x - 5) * 0.2, 4.15), colour)
    box(axes, 5, 4.6, "sum", GREY, width=1.4)


def main() -> None:
    """Draw both forms side by side."""
    path = Path(sys.argv[1])
    figure = Figure(figsize=(9.6, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    block(left, "training: both attentions", castled=False)
    block(right, "castled: dense and linear", castled=True)
    figure.savefig(path, dpi=160)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
