"""Which value, or colour, of a mask is which class: given by a recipe, by a file beside the data, or by its format.

One name is no class: pixels of `ignore` belong to none, are not trained on and not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from castling.measure.plain_json import parse_json
from castling.sentences import one_line, shown

IGNORED = 255  # the label of pixels that are not trained on and not counted; as a value of masks it is ignored as well
MOST_CLASSES = 254  # labels have 8 bits
LISTS = ("classes.txt", "classes.json")  # where a list of classes is looked for
NO_CLASS = "ignore"  # the name, in a list of classes, of what is ignored
Color = tuple[int, int, int]


@dataclass(frozen=True)
class ClassTable:
    """The classes, and how masks say them.

    Args:
        names: one of each class; its place is the label.
        values: what masks of numbers have for each class.
        ignored: values that are ignored.
        colors: what masks of colours have for each class, and what it is drawn in; None where nobody says.
        ignored_colors: colours that are ignored.

    Raises:
        ValueError: for no classes or too many, names, values or colours that are there twice, or other numbers of them.
    """

    names: tuple[str, ...]
    values: tuple[int, ...]
    ignored: tuple[int, ...] = (IGNORED,)
    colors: tuple[Color, ...] | None = None
    ignored_colors: tuple[Color, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= len(self.names) <= MOST_CLASSES:
            raise ValueError(f"there can be 1 to {MOST_CLASSES} classes; got {len(self.names)}")
        for what, members in (("class", self.names), ("value", self.values), ("colour", self.colors or self.names)):
            if len(members) != len(self.names):
                raise ValueError(f"{len(self.names)} classes need as many {what}s; got {len(members)}")
            again = [member for place, member in enumerate(members) if member in members[:place]]
            if again:
                raise ValueError(f"the {what} {shown(again[0])} is there twice")
        if self.colors and not all(
            0 <= part <= 255 for color in (*self.colors, *self.ignored_colors) for part in color
        ):
            raise ValueError("colours have three numbers from 0 to 255")

    @property
    def legal(self) -> str:
        """The values that a mask of numbers may have, in words."""
        return f"{ranges(self.values)} are classes, {ranges(self.ignored)} ignored"


@dataclass(frozen=True)
class ClassList:
    """What a list of classes says.

    Args:
        names: the names in order, what is ignored among them.
        colors: the colours of each; None where the list has no colours.
    """

    names: tuple[str, ...]
    colors: tuple[Color, ...] | None = None


def make_table(
    listed: ClassList,
    values: Sequence[int] | None = None,
    ignore: Iterable[int] = (),
    reduce_zero: bool = False,
) -> ClassTable:
    """The classes of a list.

    Args:
        listed: names and colours.
        values: the mask's value of each name; by default their places, from 0 on.
        ignore: values that are ignored, beside 255 where that is no class.
        reduce_zero: zero is ignored, and the first name has the value 1.

    Raises:
        ValueError: for values that do not fit the names, or are both a class and ignored.

    Example:
        >>> table = make_table(ClassList(("sky", "road", "ignore")))
        >>> table.names, table.values, table.ignored, table.legal
        (('sky', 'road'), (0, 1), (2, 255), '0-1 are classes, 2, 255 ignored')
        >>> make_table(ClassList(("wall", "floor")), reduce_zero=True).legal
        '1-2 are classes, 0, 255 ignored'
    """
    if values is not None and reduce_zero:
        raise ValueError("values say already which value is which class: reduce_zero must not be set as well")
    start = 1 if reduce_zero else 0
    numbers = list(values) if values is not None else list(range(start, start + len(listed.names)))
    if len(numbers) != len(listed.names):
        raise ValueError(f"{len(listed.names)} names need as many values; got {len(numbers)}")
    classes = [place for place, name in enumerate(listed.names) if name.lower() != NO_CLASS]
    others = [place for place in range(len(numbers)) if place not in classes]
    used = [numbers[place] for place in classes]
    ignored = {*ignore, *(numbers[place] for place in others), *([0] if reduce_zero else [])}
    if ignored & set(used):
        raise ValueError(f"ignore has values of classes: {ranges(ignored & set(used))}")
    ignored |= {IGNORED} - set(used)
    colors = listed.colors
    return ClassTable(
        names=tuple(listed.names[place] for place in classes),
        values=tuple(used),
        ignored=tuple(sorted(ignored)),
        colors=None if colors is None else tuple(colors[place] for place in classes),
        ignored_colors=() if colors is None else tuple(colors[place] for place in others),
    )


def find_list(root: Path) -> ClassList | None:
    """The list of classes in a folder; None where there is none.

    Raises:
        ValueError: names a list that cannot be read.
    """
    path = next((root / name for name in LISTS if (root / name).is_file()), None)
    return None if path is None else read_list(path)


def read_list(path: Path) -> ClassList:
    """The classes of a file.

    Text has a name on each line, with three numbers of a colour before or behind it, or without. JSON is a list of
    names, a list of objects with `name` and `color`, or an object with colours by name.

    Raises:
        ValueError: for anything else, or colours that only some classes have.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        pairs = (
            _of_json(parse_json(text, "it")) if path.suffix == ".json" else [_of_line(line) for line in _lines(text)]
        )
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise ValueError(
            f'{path}: expected names of classes, such as ["sky", "road"], or each with a colour, such as '
            f'{{"sky": [70, 130, 180]}}; {type(error).__name__}: {one_line(error)}'
        ) from error
    if not pairs:
        raise ValueError(f"{path}: there is no class in it")
    colors = [color for _, color in pairs if color is not None]
    if colors and len(colors) < len(pairs):
        without = next(name for name, color in pairs if color is None)
        raise ValueError(f"{path}: some classes have a colour, {shown(without)} has none")
    if not all(0 <= part <= 255 for color in colors for part in color):
        raise ValueError(f"{path}: colours have three numbers from 0 to 255")
    return ClassList(tuple(name for name, _ in pairs), tuple(colors) or None)


def ranges(numbers: Iterable[int]) -> str:
    """Numbers in words.

    Example:
        >>> ranges([0, 1, 2, 3, 7, 9, 10])
        '0-3, 7, 9-10'
    """
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in spans) or "none"


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _of_line(line: str) -> tuple[str, Color | None]:
    words = line.replace(",", " ").split()
    for numbers, rest in ((words[:3], words[3:]), (words[-3:], words[:-3])):
        if rest and len(numbers) == 3 and all(word.isdecimal() for word in numbers):
            return " ".join(rest), _color([int(word) for word in numbers])
    return line, None


def _of_json(content: Any) -> list[tuple[str, Color | None]]:
    if isinstance(content, dict):
        return [(str(name), _color(color)) for name, color in content.items()]
    if not isinstance(content, list):
        raise TypeError(f"it is a {type(content).__name__}")
    pairs: list[tuple[str, Color | None]] = []
    for entry in content:
        if isinstance(entry, dict):
            pairs.append((str(entry["name"]), _color(entry["color"]) if entry.get("color") is not None else None))
        elif isinstance(entry, str):
            pairs.append((entry, None))
        else:
            raise TypeError(f"{shown(entry)} is no name")
    return pairs


def _color(numbers: Sequence[int]) -> Color:
    red, green, blue = (int(number) for number in numbers)
    return red, green, blue
