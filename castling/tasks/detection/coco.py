"""COCO's json: one file a split, with pictures, categories and boxes as x y width height.

Categories may have any numbers, with gaps; pictures may have no boxes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

from castling.sentences import one_line, shown
from castling.tasks.detection.annotations import Box, Written
from castling.tasks.pictures import pictures_in

MOST = 2**53  # of a whole number that json and arrays agree on
LONGEST_PART = 255  # bytes of a name of a file or folder
LAYOUT = "annotations/instances_{split}*.json (or one *{split}*.json) with {split}2017/ or {split}/"


def find_file(root: Path, split: str) -> Path | None:
    """The file of a split; None where there is none.

    Raises:
        ValueError: if several files could be meant.
    """
    for pattern in (f"annotations/instances_{split}*.json", f"annotations/*{split}*.json", f"{split}*/*coco*.json"):
        files = sorted(file for file in root.glob(pattern) if not file.name.startswith("image_info"))  # without boxes
        if len(files) > 1:
            names = ", ".join(str(file.relative_to(root)) for file in files)
            raise ValueError(f"several files could be those of {split}: {names}; say which by {split}_annotations")
        if files:
            return files[0]
    return None


def find_pictures(root: Path, split: str, file: Path) -> Path:
    """The folder of pictures that a split's file speaks of; where there is none, the one that should be."""
    folders = [root / name for name in (f"{split}2017", split, f"images/{split}2017", f"images/{split}", "images")]
    if file.parent.parent == root and file.parent.name.startswith(split):
        folders.insert(0, file.parent)
    return next((folder for folder in folders if folder.is_dir()), folders[0])


def read_coco(file: Path, folder: Path) -> Written:
    """What a file says of the pictures in a folder.

    Raises:
        ValueError: if it is no json, or no COCO file; names the file, and the line where there is one.
    """
    content = _load(file)
    broken: list[str] = []

    def entries(what: str, *keys: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """Entries of a list with their numbers; those that lack a key are told of instead."""
        for place, entry in enumerate(content[what]):
            lacking = [key for key in keys if entry.get(key) is None] if isinstance(entry, dict) else list(keys)
            if lacking:
                broken.append(
                    f"{file}: entry {place} of {what!r} lacks {', '.join(map(repr, lacking))}: {shown(entry)}"
                )
            else:
                yield place, entry

    classes: dict[Hashable, str] = {}
    for _, entry in entries("categories", "id", "name"):
        number = _whole(entry["id"])
        if number is None or number in classes:
            broken.append(
                f"{file}: category id {shown(entry['id'])} is {'no whole number' if number is None else 'there twice'}"
            )
        else:
            classes[number] = str(entry["name"])
    classes = dict(sorted(classes.items(), key=lambda pair: int(str(pair[0]))))
    written = Written(folder, [], [], [], [], "annotation", classes, broken=broken)
    owners: dict[str, int] = {}  # by the text of the id, which some tools write as one
    for _, entry in entries("images", "id", "file_name"):
        if str(entry["id"]) in owners:
            broken.append(f"{file}: picture id {shown(entry['id'])} is there twice, as {shown(entry['file_name'])}")
            continue
        if not _is_name(str(entry["file_name"])):
            broken.append(f"{file}: no file can have the name {shown(entry['file_name'])}")
            continue
        place = owners[str(entry["id"])] = len(owners)
        written.names.append(str(entry["file_name"]))
        written.sizes.append((_whole(entry.get("width")) or 0, _whole(entry.get("height")) or 0))
        number = _whole(entry["id"])
        written.ids.append(place if number is None else number)
        written.files.append(file)
    for place, entry in entries("annotations", "image_id", "category_id", "bbox"):
        mark = _whole(entry.get("id"))
        where = f"{file}: annotation {place if mark is None else mark}"
        owner, category = owners.get(str(entry["image_id"])), _whole(entry["category_id"])
        if not _is_box(entry["bbox"]):
            broken.append(f"{where}: a box is four numbers, x y width height; got {shown(entry['bbox'])}")
        elif category is None:
            broken.append(f"{where}: category_id must be a whole number; got {shown(entry['category_id'])}")
        elif owner is None:
            written.strays.append(f"{where} of picture {shown(entry['image_id'])}")
        else:
            x, y, width, height = map(float, entry["bbox"])
            corners = (x, y, x + width, y + height)
            crowd = bool(entry.get("iscrowd", 0))
            area = _area(entry.get("area"), width * height)  # corners would round it
            written.boxes.append(Box(owner, corners, category, crowd, place if mark is None else mark, area))
    listed = {Path(name).as_posix() for name in written.names}
    there = (name.removeprefix("./") for name in pictures_in(folder, folder))
    written.unlisted = sorted(name for name in there if name not in listed)
    return written


def _load(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ValueError(
            f"{file} is no json: {error.msg} in {where}; mend that line or export the file again"
        ) from error
    except (ValueError, RecursionError) as error:  # no text, or a number of too many digits
        raise ValueError(f"{file} is no json: {one_line(error)}; export the file again") from error
    wanted = ("images", "categories", "annotations")
    missing = [key for key in wanted if not isinstance(content.get(key), list)] if isinstance(content, dict) else wanted
    if missing:
        has = one_line(", ".join(map(repr, content))) if isinstance(content, dict) else type(content).__name__
        raise ValueError(
            f"{file} is no COCO file: it lacks the lists {', '.join(map(repr, missing))}; it has {has or 'nothing'}"
        )
    return content


def _whole(value: object) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < MOST else None


def _is_box(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 4
        and all(type(number) is float or (type(number) is int and abs(number) < MOST) for number in value)
    )


def _area(value: object, otherwise: float) -> float:
    """The area that is written, which is that of the object's mask; that of the box where it is none."""
    is_area = type(value) in (int, float) and 0 <= value < MOST  # type: ignore[operator]
    return float(value) if is_area else otherwise  # type: ignore[arg-type]


def _is_name(text: str) -> bool:
    """Whether a file can be called so."""
    try:
        return "\0" not in text and all(len(os.fsencode(part)) <= LONGEST_PART for part in text.split("/"))
    except UnicodeEncodeError:
        return False
