"""Pascal VOC's xml: one file a picture, with boxes as pixel numbers that begin at 1 and count both ends.

Objects that are marked difficult are read as crowd: not trained on, and nobody is asked to find them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from xml.etree import ElementTree

from castling.tasks.detection.annotations import Box, Written
from castling.tasks.held_out import is_held_out
from castling.tasks.pictures import ENDINGS

LAYOUT = "Annotations/*.xml with JPEGImages/ (or images/), and ImageSets/Main/{split}.txt where there are lists"
CORNERS = ("xmin", "ymin", "xmax", "ymax")


def find_annotations(root: Path) -> Path | None:
    """The folder of xml files; None where there is none."""
    folders = (root / "Annotations", root / "annotations")
    return next((folder for folder in folders if next(folder.glob("*.xml"), None)), None)


def find_pictures(root: Path) -> Path:
    """The folder of pictures; where there is none, the one that should be."""
    return next((root / name for name in ("JPEGImages", "images") if (root / name).is_dir()), root / "JPEGImages")


def find_lists(root: Path) -> dict[str, Path]:
    """The lists of names by split; `trainval` stands for a `train` that is missing, and `test` for a `val`."""
    lists = {path.stem: path for path in sorted((root / "ImageSets" / "Main").glob("*.txt"))}
    if "train" not in lists and "trainval" in lists:
        lists["train"] = lists["trainval"]
        lists.pop("val", None)  # which is part of it
    if "val" not in lists and "test" in lists:
        lists["val"] = lists.pop("test")
    return {split: lists[split] for split in ("train", "val", "test") if split in lists}


def read_voc(
    annotations: Path,
    pictures: Path,
    split: str,
    names: Path | None = None,
    labels: Sequence[str] | None = None,
    training_names: Path | None = None,
) -> Written:
    """What the files of a split say.

    Args:
        annotations: the folder of xml files.
        pictures: the folder of pictures.
        split: `train` or `val`; without lists a tenth of the names is kept for `val`.
        names: the list of the split.
        labels: the classes, in order; by default all names in the training files, by alphabet.
        training_names: the list of the training split, which the classes are looked up in.

    Raises:
        ValueError: if a list cannot be read.
    """
    files = {path.stem: path for path in sorted(pictures.glob("*")) if path.suffix.lower() in ENDINGS}
    stems = _stems(annotations, split, names)
    written = Written(pictures, [], [], [], [], "object", {})
    for stem in stems:
        file = annotations / f"{stem.lstrip('/')}.xml"
        place = len(written.names)
        written.names.append(files[stem].name if stem in files else f"{stem}.jpg")
        written.files.append(file)
        written.ids.append(place)
        written.sizes.append(_read_file(file, place, written))
    if labels is None and split == "train":
        labels = sorted({str(box.category) for box in written.boxes})
    elif labels is None:
        training = read_voc(annotations, pictures, "train", training_names)
        labels = list(training.classes.values())
    written.classes = {label: label for label in labels}
    described = {path.stem for path in annotations.glob("*.xml")} | set(stems)
    written.unlisted = [path.name for stem, path in files.items() if stem not in described]
    return written


def _stems(annotations: Path, split: str, names: Path | None) -> list[str]:
    if names is None:
        stems = sorted(path.stem for path in annotations.glob("*.xml"))
        return [stem for stem in stems if is_held_out(stem) == (split == "val")]
    try:
        lines = names.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{names} cannot be read: {error}; it must have one name in a line") from error
    return list(dict.fromkeys(line.split()[0] for line in lines if line.strip()))  # some lists have a flag behind


def _read_file(file: Path, owner: int, written: Written) -> tuple[int, int]:
    """Add the boxes of a file, or what is wrong with it; returns the picture's size."""
    try:
        tree = ElementTree.fromstring(file.read_bytes(), ElementTree.XMLParser(target=_Plain()))
    except ElementTree.ParseError as error:
        written.broken.append(f"{file} is no xml: {error}; mend that line or export the file again")
        return 0, 0
    except (OSError, ValueError, LookupError) as error:
        reason = "it is listed and not there" if isinstance(error, FileNotFoundError) else str(error)
        written.broken.append(f"{file} cannot be read: {reason}; add the file or take its name from the list")
        return 0, 0
    for number, entry in enumerate(tree.iter("object"), 1):
        name = (entry.findtext("name") or "").strip()
        texts = [entry.findtext(f"bndbox/{corner}") for corner in CORNERS]
        try:
            x0, y0, x1, y1 = (float(text or "nothing") for text in texts)
        except ValueError:
            told = ", ".join(f"{corner} {text!r}" for corner, text in zip(CORNERS, texts, strict=True))
            written.broken.append(f"{file}, object {number}: a box is four numbers; got {told}")
            continue
        if not name:
            written.broken.append(f"{file}, object {number}: it has no name")
            continue
        crowd = (entry.findtext("difficult") or "0").strip() == "1"
        category: Hashable = name
        written.boxes.append(Box(owner, (x0 - 1, y0 - 1, x1, y1), category, crowd, number))
    width, height = (_number(tree.findtext(f"size/{side}")) for side in ("width", "height"))
    return width, height


class _Plain(ElementTree.TreeBuilder):
    """A tree without a DOCTYPE, whose entities could make a small file huge, or name other files."""

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        raise ValueError("it has a DOCTYPE, which annotations do without")


def _number(text: str | None) -> int:
    try:
        number = int(float(text or 0))
    except (ValueError, OverflowError):
        return 0
    return number if 0 <= number < 2**31 else 0
