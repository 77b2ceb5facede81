"""Labels drawn over a picture in the colours of their classes, with a legend; and as an image with a palette."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from castling.tasks.segmentation.classes import IGNORED, Color

LEVELS = 18  # shades of red, green and blue that colours are chosen from
LIGHTNESS = (30.0, 88.0)  # of colours, from 0 to 100: neither night nor paper
UNLABELLED = (0, 0, 0)  # of pixels that are ignored, in an image with a palette
GAP = 4  # pixels
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])  # of linear sRGB
WHITE = TO_XYZ.sum(1)  # what red, green and blue add up to


@lru_cache(maxsize=4)
def make_palette(num_classes: int) -> tuple[Color, ...]:
    """A colour for each class, as unlike those before it as can be, to the eye (CIELAB).

    The colours of few classes are the first of those of many.

    Example:
        >>> make_palette(20) == make_palette(150)[:20], len(set(make_palette(150)))
        (True, 150)
    """
    shades = np.linspace(0, 255, LEVELS).round()
    colors = np.stack(np.meshgrid(shades, shades, shades, indexing="ij"), -1).reshape(-1, 3)
    places = _lab(colors)
    good = (places[:, 0] >= LIGHTNESS[0]) & (places[:, 0] <= LIGHTNESS[1])
    colors, places = colors[good], places[good]
    chosen = [int(np.argmax(np.linalg.norm(places[:, 1:], axis=1)))]  # the strongest colour
    distances = np.full(len(colors), np.inf)
    while len(chosen) < num_classes:
        distances = np.minimum(distances, np.linalg.norm(places - places[chosen[-1]], axis=1))
        chosen.append(int(distances.argmax()))
    return tuple((int(red), int(green), int(blue)) for red, green, blue in colors[chosen[:num_classes]])


def _lab(colors: np.ndarray) -> np.ndarray:
    """Colours `(N, 3)` of 8 bits as CIELAB has them, where distances are those of the eye."""
    share = colors / 255
    linear = np.where(share > 0.04045, ((share + 0.055) / 1.055) ** 2.4, share / 12.92)
    xyz = linear @ TO_XYZ.T / WHITE
    root = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    x, y, z = root.T
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], 1)


def as_palette(colors: Sequence[Sequence[int]] | None, num_classes: int) -> tuple[Color, ...]:
    """The colours that the data has, or else made ones.

    Raises:
        ValueError: if there is not one for each class.
    """
    if colors is None:
        return make_palette(num_classes)
    if len(colors) != num_classes:
        raise ValueError(f"{num_classes} classes need as many colours; got {len(colors)}")
    return tuple((int(red), int(green), int(blue)) for red, green, blue in colors)


def palette_image(labels: np.ndarray, palette: Sequence[Color]) -> Image.Image:
    """Labels as an image of mode P: its pixels are the labels, its palette gives them colours.

    Args:
        labels: `(H, W)`: places in the palette; 255 for none.
        palette: a colour for each class.

    Example:
        >>> image = palette_image(np.array([[1, 255]]), [(9, 9, 9), (1, 2, 3)])
        >>> image.mode, np.asarray(image).tolist(), image.convert("RGB").getpixel((0, 0))
        ('P', [[1, 255]], (1, 2, 3))
    """
    image = Image.fromarray(labels.astype(np.uint8)).convert("L")
    image.putpalette(_table(palette).ravel().tolist())
    return image


def draw_labels(
    picture: Image.Image, labels: np.ndarray, palette: Sequence[Color], opacity: float = 0.6
) -> Image.Image:
    """A copy of a picture with labels over it; pixels without a label stay as they are.

    Args:
        picture: a picture in any mode.
        labels: `(H, W)`, of the picture's size.
        palette: a colour for each class.
        opacity: how much of a label's colour is seen, from 0 to 1.
    """
    below = np.asarray(picture.convert("RGB"), np.float32)
    above = _table(palette)[labels]
    share = np.where(labels == IGNORED, 0.0, opacity)[..., None].astype(np.float32)
    return Image.fromarray((below * (1 - share) + above * share).round().astype(np.uint8))


def with_legend(picture: Image.Image, words: Sequence[str], colors: Sequence[Color]) -> Image.Image:
    """A picture with a line of names below it, each beside its colour; as many lines as it takes.

    Example:
        >>> with_legend(Image.new("RGB", (90, 60)), ["sky", "road"], [(0, 0, 255), (90, 90, 90)]).width
        90
    """
    if not words:
        return picture
    font = ImageFont.load_default(max(10, round(min(picture.size) / 32)))
    ruler = ImageDraw.Draw(Image.new("RGB", (1, 1)))
    line = int(ruler.textbbox((0, 0), "Ag", font)[3]) + GAP
    square = line - GAP
    lengths = [square + 3 * GAP + int(ruler.textlength(word, font)) for word in words]
    width = max(picture.width, *(length + GAP for length in lengths))
    places, x, y = [], GAP, picture.height + GAP
    for length in lengths:
        if x > GAP and x + length > width:
            x, y = GAP, y + line
        places.append((x, y))
        x += length
    drawn = Image.new("RGB", (width, y + line + GAP), "white")
    drawn.paste(picture, ((width - picture.width) // 2, 0))
    canvas = ImageDraw.Draw(drawn)
    for (x, y), word, color in zip(places, words, colors, strict=True):
        canvas.rectangle((x, y, x + square, y + square), fill=color, outline="black")
        canvas.text((x + square + GAP, y), word, "black", font)
    return drawn


def beside(*pictures: Image.Image) -> Image.Image:
    """Pictures in a row.

    Example:
        >>> beside(Image.new("RGB", (9, 9)), Image.new("RGB", (9, 5))).size
        (22, 9)
    """
    width = sum(picture.width for picture in pictures) + GAP * (len(pictures) - 1)
    row = Image.new("RGB", (width, max(picture.height for picture in pictures)), "white")
    left = 0
    for picture in pictures:
        row.paste(picture, (left, 0))
        left += picture.width + GAP
    return row


def shrunk(picture: Image.Image, labels: np.ndarray, side: int) -> tuple[Image.Image, np.ndarray]:
    """A picture and its labels, with so many pixels on the longer side."""
    scale = side / max(picture.size)
    width, height = (max(1, round(length * scale)) for length in picture.size)
    mask = Image.fromarray(labels.astype(np.uint8)).resize((width, height), Image.Resampling.NEAREST)
    return picture.convert("RGB").resize((width, height)), np.asarray(mask)


def _table(palette: Sequence[Color]) -> np.ndarray:
    """Colours of all values that 8 bits have."""
    table = np.tile(np.array(UNLABELLED, np.uint8), (IGNORED + 1, 1))
    table[: len(palette)] = palette
    return table
