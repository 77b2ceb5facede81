"""Pictures with boxes: where they lie, in which form, and what the network sees of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from castling.config import check_choice
from castling.sentences import one_line
from castling.tasks.detection import coco, voc, yolo
from castling.tasks.detection.annotations import Annotations, Written, usable
from castling.tasks.held_out import check_share

Format = Literal["auto", "coco", "voc", "yolo"]
LAYOUTS = {"coco": coco.LAYOUT, "voc": voc.LAYOUT, "yolo": yolo.LAYOUT}
STRIDE = 32  # a side of the input is a multiple of it
LOOKED_AT = 100  # pictures of which one must be there, or the folder is the wrong one


@dataclass(frozen=True)
class DetectionData:
    """Where pictures and boxes are, and what the network sees of them: all of a picture, resized to a square.

    Args:
        root: the folder of the data.
        image_size: side of the square.
        format: `coco`, `voc`, `yolo`, or `auto` to recognise it.
        train_annotations: COCO's file, VOC's list of names or YOLO's folder of labels, where not at its usual place;
            relative to the root.
        train_pictures: the folder of pictures, where not at its usual place.
        val_annotations: the same for evaluation.
        val_pictures: the same for evaluation.
        labels: the classes of VOC's files, in order; by default those that training files name.
        sizes: sides that training batches are resized to, one of them in each step; none for `image_size` alone, which
            is that of evaluation.
        mean: the mean of the normalisation, one number per channel.
        std: the standard deviation of the normalisation.
        interpolation: the interpolation of resizing.
        held_out: share of the training pictures that are the validation split instead of the data's own, which is then
            not opened; 0 for the data's own.

    Raises:
        ValueError: for an unknown format or interpolation, sides that 32 does not divide, or a share outside [0, 1).
    """

    root: str | None = None
    image_size: int = 320
    format: Format = "auto"
    train_annotations: str | None = None
    train_pictures: str | None = None
    val_annotations: str | None = None
    val_pictures: str | None = None
    labels: tuple[str, ...] | None = None
    sizes: tuple[int, ...] = ()
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    interpolation: str = "bilinear"
    held_out: float = 0.0

    channels = 3

    def __post_init__(self) -> None:
        check_share(self.held_out)
        check_choice("format", self.format, get_args(Format))
        check_choice("interpolation", self.interpolation, ("nearest", "bilinear", "bicubic"))
        for side in (self.image_size, *self.sizes):
            if side < STRIDE or side % STRIDE:
                raise ValueError(f"image_size and sizes must be multiples of {STRIDE}; got {side}")

    def example(self) -> Tensor:
        """An empty picture `(1, 3, H, W)`, for counting and probing."""
        return torch.zeros(1, self.channels, self.image_size, self.image_size)

    def preprocessing(self) -> dict[str, Any]:
        """How a picture becomes the network's input, as plain values; its ratio of sides is not kept."""
        return {"mean": self.mean, "std": self.std, "interpolation": self.interpolation, "crop_share": 1.0}


def open_split(data: DetectionData, split: str) -> Annotations:
    """The pictures of a split with the boxes that can be trained on.

    Raises:
        ValueError: names a format that is not recognised, a file that is broken, a class that is in no list of
            classes, or a folder without pictures.
        FileNotFoundError: names the folder or file that is missing.
    """
    check_choice("split", split, ("train", "val"))
    written = read_split(data, split)
    if written is None:
        form = find_format(data)
        raise FileNotFoundError(f"no {split} in {data.root}: looked for {_layout(form, split)}")
    annotations = usable(written)
    first = [annotations.root / annotations.name(index) for index in range(min(len(annotations), LOOKED_AT))]
    if not any(path.is_file() for path in first):
        raise FileNotFoundError(
            f"none of the pictures of {split} is there, first {one_line(first[0])}; say where by {split}_pictures"
        )
    return annotations


def check_classes(annotations: Annotations, labels: Sequence[str], category_ids: Sequence[int]) -> None:
    """Refuse a split that has other classes than a network was made for.

    Raises:
        ValueError: names the first class that differs.
    """
    wanted = list(zip(category_ids, labels, strict=True))
    there = list(zip(annotations.category_ids, annotations.labels, strict=True))
    if there != wanted:
        first = next((pair for pair in there if pair not in wanted), None) or next(
            pair for pair in wanted if pair not in there
        )
        raise ValueError(
            f"{annotations.root}: its {len(there)} classes are not the {len(wanted)} of training; "
            f"first that only one of them has: {first[1]!r} with id {first[0]}"
        )


def find_format(data: DetectionData) -> str:
    """The format of the data: as given, or recognised.

    Raises:
        ValueError: without a root, or where nothing fits; says what was looked for.
        FileNotFoundError: names the folder that is missing.
    """
    root = _root(data)
    if data.format != "auto":
        return data.format
    form = recognise(root)
    if form is None:
        looked = "; ".join(f"{form}: {_layout(form, 'train')}" for form in LAYOUTS)
        there = ", ".join(sorted(path.name for path in islice(root.iterdir(), 10))) or "nothing"
        raise ValueError(f"no boxes recognised in {root}, which has {there}; looked for {looked}")
    return form


def recognise(root: Path) -> str | None:
    """The format in which a folder has boxes; None for none that is known."""
    if coco.find_file(root, "train") or coco.find_file(root, "val"):
        return "coco"
    if voc.find_annotations(root):
        return "voc"
    return "yolo" if yolo.find_yaml(root) and yolo.find_pictures(root, "train") else None


def read_split(data: DetectionData, split: str) -> Written | None:
    """What the files of a split say, unchecked; None where the data has no such split.

    Args:
        data: the section of the recipe that says where they are.
        split: `train`, `val` or `test`.

    Raises:
        ValueError: if nothing can be read from them.
        FileNotFoundError: names a folder or file that was given and is missing.
    """
    root, form = _root(data), find_format(data)
    annotations, pictures = (_given(data, root, f"{split}_{what}") for what in ("annotations", "pictures"))
    if form == "coco":
        file = annotations or coco.find_file(root, split)
        return None if file is None else coco.read_coco(file, pictures or coco.find_pictures(root, split, file))
    if form == "yolo":
        pictures = pictures or yolo.find_pictures(root, split)
        if pictures is None:
            return None
        return yolo.read_yolo(annotations or yolo.labels_beside(pictures), pictures, yolo.read_names(root))
    folder, lists = voc.find_annotations(root), voc.find_lists(root)
    if annotations is not None:
        lists[split] = annotations
    if folder is None or (split not in lists if lists else split == "test"):
        return None
    training = _given(data, root, "train_annotations") or lists.get("train")
    return voc.read_voc(folder, pictures or voc.find_pictures(root), split, lists.get(split), data.labels, training)


def _root(data: DetectionData) -> Path:
    if data.root is None:
        raise ValueError("data.root: name the folder that pictures and boxes are in")
    root = Path(data.root).expanduser()
    if not root.is_dir():
        raise FileNotFoundError(f"no folder {root}")
    return root


def _given(data: DetectionData, root: Path, name: str) -> Path | None:
    """A path that the configuration gives, relative to the root."""
    value = getattr(data, name, None)
    if value is None:
        return None
    path = root / Path(value).expanduser()
    if not path.exists():
        raise FileNotFoundError(f"{name}: no {path}")
    return path


def _layout(form: str, split: str) -> str:
    return LAYOUTS[form].replace("{split}", split)
