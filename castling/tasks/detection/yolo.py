"""YOLO's text: one file a picture, one box a line, as class and centre, width and height in shares of the picture.

`data.yaml` names the classes; a picture without a file has no boxes.
"""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

from castling.sentences import one_line, shown
from castling.settings import read_yaml
from castling.tasks.detection.annotations import Box, Written
from castling.tasks.pictures import open_picture_file, pictures_in, upright

LAYOUT = "data.yaml with names:, images/{split}/ and labels/{split}/"
STAND_INS = {"train": ("train",), "val": ("val", "valid", "test"), "test": ("test",)}


def find_yaml(root: Path) -> Path | None:
    """The file that names the classes; None where there is none."""
    files = (root / name for name in ("data.yaml", "data.yml", "dataset.yaml"))
    return next((file for file in files if file.is_file()), None)


def find_pictures(root: Path, split: str) -> Path | None:
    """The folder of pictures of a split, by data.yaml or by its usual name; None where there is none.

    Raises:
        ValueError: if data.yaml has anything but one folder for the split.
    """
    file = find_yaml(root)
    values = _load(file) if file else {}
    folders: list[Path] = []
    for name in STAND_INS[split]:
        value = values.get(name)
        if value is not None and (not isinstance(value, str) or value.endswith(".txt")):
            raise ValueError(f"{file}: {name} must be one folder of pictures; got {shown(value)}")
        if value is not None:
            base = root / str(values.get("path") or ".")
            folders += [
                base / value,
                base / value.removeprefix("../"),
                root / value,
            ]  # some tools write one .. too many
        folders += [root / "images" / name, root / name / "images"]
    try:
        return next((folder for folder in folders if folder.is_dir()), None)
    except OSError as error:  # a name that none can have
        raise ValueError(f"{file}: {one_line(error.strerror)}") from error


def labels_beside(pictures: Path) -> Path:
    """The folder of labels that belongs to a folder of pictures: the last `images` of its path is `labels`.

    Example:
        >>> labels_beside(Path("data/images/train")).as_posix()
        'data/labels/train'
    """
    parts = list(pictures.parts)
    if "images" not in parts:
        return pictures
    last = len(parts) - 1 - parts[::-1].index("images")
    return Path(*parts[:last], "labels", *parts[last + 1 :])


def read_names(root: Path) -> dict[Hashable, str]:
    """Numbers and names of the classes.

    Raises:
        ValueError: without data.yaml, or where its names are neither a list nor a mapping from whole numbers.
    """
    file = find_yaml(root)
    if file is None:
        raise ValueError(f"no data.yaml in {root}: it must name the classes, such as names: [cat, dog]")
    names = _load(file).get("names")
    if isinstance(names, list) and names:
        return {number: str(name) for number, name in enumerate(names)}
    if isinstance(names, dict) and names and all(isinstance(number, int) for number in names):
        return {number: str(name) for number, name in sorted(names.items())}
    raise ValueError(f"{file}: names must be a list, or a mapping from whole numbers to names; got {shown(names)}")


def read_yolo(labels: Path, pictures: Path, names: dict[Hashable, str]) -> Written:
    """What the files of a split say.

    Args:
        labels: the folder of text files.
        pictures: the folder of pictures.
        names: numbers and names of the classes.
    """
    written = Written(pictures, [], [], [], [], "line", dict(names))
    described = set()
    for name in sorted(name.removeprefix("./") for name in pictures_in(pictures, pictures)):
        place, file = len(written.names), labels / Path(name).with_suffix(".txt")
        size = _size(pictures / name)
        described.add(file)
        written.names.append(name)
        written.ids.append(place)
        written.sizes.append(size)
        written.files.append(file if file.is_file() else None)
        if file.is_file():
            _read_lines(file, place, size, written)
    for file in sorted(labels.rglob("*.txt")):
        if file not in described and file.name != "classes.txt":
            written.strays.append(f"{file}, of which there is no picture")
    return written


def _load(file: Path) -> dict[str, Any]:
    return read_yaml(file.read_bytes(), str(file))


def _size(path: Path) -> tuple[int, int]:
    """Width and height from the head of a file; 0 where it is broken, which its reading will tell."""
    try:
        with open_picture_file(path) as picture:
            return upright(picture).size  # decodes those alone that are to be turned
    except (OSError, ValueError):
        return 0, 0


def _read_lines(file: Path, owner: int, size: tuple[int, int], written: Written) -> None:
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        written.broken.append(f"{file} is no text: {error}; export the file again")
        return
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words:
            continue
        try:
            category, (x, y, width, height) = float(words[0]), map(float, words[1:])
            if not category.is_integer():
                raise ValueError
        except ValueError:
            told = line.strip()[:60]
            written.broken.append(f"{file}, line {number}: a line is a whole number and x y width height; got {told!r}")
            continue
        if min(size) > 0:  # shares of an unreadable picture are of no use
            scale_x, scale_y = size
            corners = ((x - width / 2) * scale_x, (y - height / 2) * scale_y)
            ends = ((x + width / 2) * scale_x, (y + height / 2) * scale_y)
            area = width * scale_x * height * scale_y  # corners would round it
            written.boxes.append(Box(owner, (*corners, *ends), int(category), False, number, area))
