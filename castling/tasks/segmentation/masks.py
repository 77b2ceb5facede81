"""Mask files into labels: numbers of 8 or 16 bits, places in a palette, or colours; never an unknown value in silence.

What a palette looks like does not matter: the numbers of its places are the values.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from castling.tasks.pictures import WrongAnnotation, read_picture
from castling.tasks.segmentation.classes import IGNORED, ClassTable, Color

NAMED = 5  # so many unknown values are named
PNG_HEAD = b"\x89PNG\r\n\x1a\n"
PNG_DEPTH, PNG_KIND = 24, 25  # places of the bits of a value and of the kind of picture in a PNG file
LOSSY = (".jpg", ".jpeg", ".webp")  # endings of files that change values when they are written
Value = int | Color


class Labels(NamedTuple):
    """A mask in the classes of a table.

    Args:
        labels: uint8 `(H, W)`: places of classes, 255 for what is ignored, or unknown.
        unknown: how many pixels have which value, or colour, that is neither.
    """

    labels: np.ndarray
    unknown: Mapping[Value, int]


def read_mask(path: Path) -> np.ndarray:
    """The values of a mask file: `(H, W)`, or `(H, W, 3)` for colours.

    Raises:
        OSError: if it cannot be read.
    """
    values = mask_values(read_picture(path))
    return values // _grey_step(path)


def mask_values(mask: Image.Image) -> np.ndarray:
    """The values of a mask: `(H, W)`, or `(H, W, 3)` for colours.

    Example:
        >>> palette = Image.new("P", (2, 2), 7)
        >>> palette.putpalette([255, 0, 0] * 256)
        >>> mask_values(palette).tolist()
        [[7, 7], [7, 7]]
        >>> mask_values(Image.new("I;16", (1, 1), 300)).tolist()
        [[300]]
    """
    if mask.mode in ("RGB", "RGBA", "RGBX"):
        return np.asarray(mask)[..., :3]
    if mask.mode in ("1", "L", "P", "LA", "PA") or mask.mode.startswith("I"):
        values = np.asarray(mask)
        values = values[..., 0] if values.ndim == 3 else values  # how opaque it is does not matter
        return values.astype(np.uint8) if values.dtype == bool else values
    return np.asarray(mask.convert("RGB"))


def to_labels(values: np.ndarray, table: ClassTable) -> Labels:
    """Values of a mask as labels.

    Colours that are all grey are numbers, where the table has no colours.

    Args:
        values: `(H, W)`, or `(H, W, 3)` for colours.
        table: the classes.

    Example:
        >>> labels = to_labels(np.array([[1, 2, 0, 9]]), ClassTable(("wall", "floor"), (1, 2), (0, 255)))
        >>> labels.labels.tolist(), dict(labels.unknown)
        ([[0, 1, 255, 255]], {9: 1})
    """
    if values.ndim == 3 and table.colors is not None:
        known = {_code(color): label for label, color in enumerate(table.colors)}
        known |= {_code(color): IGNORED for color in table.ignored_colors}
        codes = values.astype(np.int64) @ np.array([65536, 256, 1])
        return _looked_up(codes, known, colors=True)
    if values.ndim == 3 and (values == values[..., :1]).all():
        values = values[..., 0]
    if values.ndim == 3:
        codes, counts = np.unique(values.reshape(-1, 3), axis=0, return_counts=True)
        unknown: dict[Value, int] = {_color(code): int(count) for code, count in zip(codes, counts, strict=True)}
        return Labels(np.full(values.shape[:2], IGNORED, np.uint8), unknown)
    known = dict.fromkeys(table.ignored, IGNORED) | {value: label for label, value in enumerate(table.values)}
    return _looked_up(values.astype(np.int64), known, colors=False)


def read_labels(path: Path, table: ClassTable, size: tuple[int, int]) -> np.ndarray:
    """The labels `(H, W)` of a picture of this width and height.

    Raises:
        WrongAnnotation: for a mask of another size, or with a value that is neither a class nor ignored.
        OSError: if it cannot be read.
    """
    values = read_mask(path)
    if values.shape[:2] != (size[1], size[0]):
        has = " x ".join(map(str, values.shape[1::-1]))
        raise WrongAnnotation(f"{path}: the mask has {has} pixels, its picture {size[0]} x {size[1]}")
    labels, unknown = to_labels(values, table)
    if unknown:
        raise WrongAnnotation(f"{path}: {say_unknown(unknown)}; {legal_values(values, table)}{_hint(path)}")
    return labels


def say_unknown(unknown: Mapping[Value, int]) -> str:
    """Unknown values in words, the most frequent first.

    Example:
        >>> say_unknown({12: 3, 40: 500})
        'unknown values 40 (500 pixels), 12 (3 pixels)'
    """
    often = sorted(unknown.items(), key=lambda pair: -pair[1])
    words = [f"{value} ({count:,} {'pixel' if count == 1 else 'pixels'})" for value, count in often[:NAMED]]
    more = f" and {len(often) - NAMED} more" if len(often) > NAMED else ""
    return f"unknown {'value' if len(often) == 1 else 'values'} {', '.join(words)}{more}"


def legal_values(values: np.ndarray, table: ClassTable) -> str:
    """What such a mask may have in it, in words."""
    if values.ndim == 3 and table.colors is not None:
        pairs = ", ".join(f"{name} {color}" for name, color in zip(table.names, table.colors, strict=True))
        ignored = "".join(f", ignored {color}" for color in table.ignored_colors)
        return f"legal colours: {pairs}{ignored}"
    if values.ndim == 3:
        return "it is in colours, and the list of classes has none: classes.txt may say `road 128 64 128`"
    return f"legal: {table.legal}"


def _looked_up(codes: np.ndarray, known: Mapping[int, int], colors: bool) -> Labels:
    """Labels of codes `(H, W)`; most masks have small numbers, for which a table is faster than a search."""
    if codes.size and codes.min() >= 0 and codes.max() < 65536:
        found = np.full(65536, -1, np.int16)
        for code, label in known.items():
            if code < len(found):
                found[code] = label
        labels = found[codes]
    else:
        wanted = np.array(sorted(known))
        places = np.searchsorted(wanted, codes).clip(max=len(wanted) - 1)
        labels = np.array([known[code] for code in wanted.tolist()], np.int16)[places]
        labels[wanted[places] != codes] = -1
    missed = codes[labels < 0]
    missing: dict[Value, int] = {}
    for code, count in zip(*np.unique(missed, return_counts=True), strict=True):
        missing[_color((code >> 16, code >> 8 & 255, code & 255)) if colors else int(code)] = int(count)
    return Labels(np.where(labels < 0, IGNORED, labels).astype(np.uint8), missing)


def _grey_step(path: Path) -> int:
    """What PIL multiplies the values of a file by: greys of 2 and 4 bits in PNG, so that the largest becomes 255."""
    with path.open("rb") as file:
        head = file.read(PNG_KIND + 1)
    if not head.startswith(PNG_HEAD) or head[PNG_KIND] != 0:  # 0 is grey
        return 1
    return {2: 255 // 3, 4: 255 // 15}.get(head[PNG_DEPTH], 1)


def _code(color: Color) -> int:
    return color[0] * 65536 + color[1] * 256 + color[2]


def _color(parts: object) -> Color:
    red, green, blue = (int(part) for part in np.asarray(parts))
    return red, green, blue


def _hint(path: Path) -> str:
    return f" ({path.suffix} files change values: masks are best PNG)" if path.suffix.lower() in LOSSY else ""
