"""Boxes drawn into a picture, with their captions."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from typing import Any

from PIL import Image, ImageDraw, ImageFont

GOLDEN = 0.618034  # steps of the colour circle that stay apart, however many there are


def color_of(label: int) -> tuple[int, int, int]:
    """The colour of a class: bright, and unlike that of its neighbours."""
    red, green, blue = colorsys.hsv_to_rgb(label * GOLDEN % 1, 0.85, 0.95)
    return round(255 * red), round(255 * green), round(255 * blue)


def draw_boxes(
    picture: Image.Image, boxes: Sequence[Sequence[float]], captions: Sequence[str], labels: Sequence[int]
) -> Image.Image:
    """A copy of a picture with boxes in it.

    Args:
        picture: a picture in any mode.
        boxes: x0 y0 x1 y1 of each in pixels; may reach over the border.
        captions: the words at each box; none where empty.
        labels: the class of each, which gives its colour.
    """
    drawn = picture.convert("RGB")
    canvas = ImageDraw.Draw(drawn)
    short = min(drawn.size)
    font = ImageFont.load_default(max(9, round(short / 32)))
    line = max(1, round(short / 160))
    for box, caption, label in zip(boxes, captions, labels, strict=True):
        if caption:
            _write(canvas, caption, box, color_of(label), font)
    for (x0, y0, x1, y1), label in zip(boxes, labels, strict=True):  # over the words: there may be many
        frame = (min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1))
        canvas.rectangle(frame, outline=color_of(label), width=line)
    return drawn


def _write(
    canvas: ImageDraw.ImageDraw, caption: str, box: Sequence[float], color: tuple[int, int, int], font: Any
) -> None:
    """Write above a box, or in it at the top of the picture."""
    left, top, right, bottom = canvas.textbbox((0, 0), caption, font)
    x = min(max(box[0], 0), max(canvas.im.size[0] - right, 0))
    y = box[1] - bottom if box[1] >= bottom else box[1]
    canvas.rectangle((x + left, y + top, x + right, y + bottom), fill=color)
    bright = 0.3 * color[0] + 0.59 * color[1] + 0.11 * color[2] > 110
    canvas.text((x, y), caption, "black" if bright else "white", font)
