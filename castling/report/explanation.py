"""What a network attends to from one place of a picture, and what decided: arrays, and pictures of them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from castling.measure.plain_json import json_text
from castling.training.run_folder import write_file

TILE, MARGIN, LINE = 192, 8, 14  # pixels of a page: the longer side of a picture, between them, of a line of text
LEAST_SIDE = 384  # of the longer side of a picture by itself
WARM, COLD = (226, 88, 12), (30, 90, 200)  # for and against
OPACITY = 0.85
Column = tuple[str, str | None, Image.Image, Image.Image | None]  # a name, a kernel, and two pictures below each other
ATTENTION, RELEVANCE, ARRAYS, WORDS = "attention.png", "relevance.png", "explanation.npz", "explanation.json"


@dataclass(frozen=True)
class LayerRow:
    """Where one place attends to in one attention.

    Args:
        layer: the name of the attention.
        kernel: its kernel.
        row: the implied row, before the output norm and without a branch: `(H, rows, columns)`.
        prefix: the same on the prefix tokens `(H, P)`.
        softmax: what softmax of the same query and keys would attend to `(H, rows, columns)`.
    """

    layer: str
    kernel: str
    row: np.ndarray
    prefix: np.ndarray
    softmax: np.ndarray


@dataclass(frozen=True)
class Explanation:
    """What a network made of one picture, and why.

    Args:
        name: the picture's path, or its place in the input.
        view: the picture as the network sees it.
        at: the place that was asked about, `(x, y)` in pixels of the view.
        rows: what it attends to, attention after attention.
        relevance: by how much the evidence would fall, to first order, without the values of a place; summed over
            attentions and resized to the view `(height, width)`.
        evidence: the number that `relevance` is of, such as the logit of the chosen class.
        said: what the network says of the picture, in a line.
    """

    name: str
    view: Image.Image
    at: tuple[int, int]
    rows: Sequence[LayerRow]
    relevance: np.ndarray
    evidence: float
    said: str

    def draw_row(self, layer: int, softmax: bool = False, head: int | None = None) -> Image.Image:
        """The view with a row over it, the mean of all heads or one of them, and the place marked.

        Args:
            layer: the number of the attention.
            softmax: the row of softmax instead of the attention's own.
            head: the number of the head; all where None.
        """
        heads = self.rows[layer].softmax if softmax else self.rows[layer].row
        return marked(overlaid(self.view, heads.mean(0) if head is None else heads[head]), self.at)

    def draw_relevance(self) -> Image.Image:
        """The view with what spoke for the outcome in orange, and against it in blue; small ones enlarged."""
        times = -(-LEAST_SIDE // max(self.view.size))
        return overlaid(self.view.resize((self.view.width * times, self.view.height * times)), self.relevance)

    def draw_attention(self) -> Image.Image:
        """A page of all attentions: the row of each above that of softmax."""
        seen = marked(self.view, self.at)
        columns: list[Column] = [("what it sees", None, seen, None)]
        for number, layer in enumerate(self.rows):
            columns.append((layer.layer, layer.kernel, self.draw_row(number), self.draw_row(number, softmax=True)))
        return _page(columns)

    def to_json(self) -> dict[str, Any]:
        """Plain values; the arrays are in a file of their own."""
        layers = []
        for row in self.rows:
            heads, *grid = row.row.shape
            layers.append({"layer": row.layer, "kernel": row.kernel, "heads": heads, "grid": grid})
        words = {"name": self.name, "said": self.said, "evidence": self.evidence}
        return {**words, "at": list(self.at), "size": list(self.view.size), "layers": layers}

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays by name: `relevance`, and `LAYER.row`, `LAYER.prefix` and `LAYER.softmax` of each attention."""
        found = {"relevance": self.relevance}
        for row in self.rows:
            found |= {f"{row.layer}.{part}": getattr(row, part) for part in ("row", "prefix", "softmax")}
        return found

    def save(self, folder: Path | str) -> list[Path]:
        """Write both pictures, the arrays and the words into a folder, made where needed; returns the files."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        arrays = io.BytesIO()
        np.savez_compressed(arrays, **self.arrays())  # type: ignore[arg-type]
        content = {
            ATTENTION: _png(self.draw_attention()),
            RELEVANCE: _png(self.draw_relevance()),
            ARRAYS: arrays.getvalue(),
            WORDS: json_text(self.to_json(), indent=2).encode(),
        }
        for name, data in content.items():
            write_file(folder / name, data)
        return [folder / name for name in content]


def place_on(grid: Sequence[int], at: tuple[int, int], size: tuple[int, int]) -> tuple[int, int]:
    """Row and column of a grid over a picture of this width and height, at a pixel `(x, y)`.

    Example:
        >>> place_on((2, 4), (99, 0), (100, 50))
        (0, 3)
    """
    (rows, columns), (x, y), (width, height) = grid, at, size
    return min(y * rows // height, rows - 1), min(x * columns // width, columns - 1)


def overlaid(picture: Image.Image, values: np.ndarray) -> Image.Image:
    """A picture in grey with values over it, the largest hundredth at full colour: orange above zero, blue below.

    Args:
        picture: the picture.
        values: `(rows, columns)` of a grid over it; each covers its part, as it is not known more finely.
    """
    sizes = np.abs(values)
    most = (
        float(np.quantile(sizes, 0.99)) or float(sizes.max()) or 1.0
    )  # a lone peak would leave the rest without colour
    strength = Image.fromarray((np.minimum(sizes / most, 1) * 255 * OPACITY).astype(np.uint8))
    colours = np.where((values >= 0)[..., None], WARM, COLD).astype(np.uint8)
    nearest = Image.Resampling.NEAREST
    grey = picture.convert("L").convert("RGB")
    return Image.composite(
        Image.fromarray(colours).resize(picture.size, nearest), grey, strength.resize(picture.size, nearest)
    )


def marked(picture: Image.Image, at: tuple[int, int]) -> Image.Image:
    """A picture with a ring around a place."""
    drawn = picture.convert("RGB")
    radius = max(3, round(max(picture.size) / 40))
    for wider, colour in ((1, "black"), (0, "white")):
        corners = [(at[0] - radius - wider, at[1] - radius - wider), (at[0] + radius + wider, at[1] + radius + wider)]
        ImageDraw.Draw(drawn).ellipse(corners, outline=colour, width=1 + wider)
    return drawn


def _page(columns: Sequence[Column]) -> Image.Image:
    """Pictures below each other in columns, with their names."""
    first = columns[0][2]
    scale = TILE / max(first.size)
    width, height = (max(1, round(side * scale)) for side in first.size)
    wide, high = width + MARGIN, height + MARGIN + LINE
    page = Image.new("RGB", (MARGIN + wide * len(columns), 2 * high + LINE), "white")
    draw = ImageDraw.Draw(page)
    for number, (name, kernel, above, below) in enumerate(columns):
        left = MARGIN + number * wide
        draw.text((left, 1), name, fill="black")
        for row, (words, picture) in enumerate(((kernel, above), ("softmax", below))):
            if picture is not None:
                top = LINE + row * high
                draw.text((left, top + 1), words or "", fill="#666666")
                page.paste(picture.resize((width, height)), (left, top + LINE))
    return page


def _png(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()
