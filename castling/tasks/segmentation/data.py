"""Where pictures and masks lie, in which form, what values of masks mean, and what the network sees of pictures."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from castling.config import check_choice
from castling.tasks.held_out import check_share
from castling.tasks.segmentation.classes import LISTS, ClassList, ClassTable, find_list, make_table, ranges
from castling.tasks.segmentation.layouts import (
    ADE_CLASSES,
    ADE_LIST,
    CITY_CLASSES,
    CITY_TRAIN_IDS,
    CITY_VALUES,
    LAYOUTS,
    Folders,
    Pairs,
    city_suffix,
    find_folders,
    pair_files,
    read_ade_list,
    recognise,
)
from castling.tasks.segmentation.masks import read_mask

Format = Literal["auto", "ade20k", "cityscapes", "folders"]
STRIDE = 32  # a side of the input is a multiple of it
LOOKED_AT = 8  # masks whose values are named to people who have to say what they mean


@dataclass(frozen=True)
class SegmentationData:
    """Where pictures and masks are, what values of masks mean, and what the network sees.

    Args:
        root: the folder of the data.
        image_size: side of the square that is cut from pictures in training.
        short_side: pixels of the shorter side that pictures are resized to before; as they are where null.
        max_side: the most pixels of the longer side, then.
        format: `ade20k`, `cityscapes`, `folders`, or `auto` to recognise it.
        train_pictures: the folder of pictures, where not at its usual place; relative to the root.
        train_masks: the folder of masks, where not at its usual place.
        val_pictures: the same for evaluation.
        val_masks: the same for evaluation.
        mask_suffix: what the names of masks have before their ending and those of pictures have not, such as `_mask`.
        labels: names of the classes, in order; by default those of `classes.txt` or `classes.json` in the root, or the
            format's. The name `ignore` stands for a value that is no class.
        values: the value in masks of each name; by default its place.
        ignore: values of masks that are ignored; 255 is too, where it is no class.
        reduce_zero: zero is ignored and the first class has the value 1; by default so for ADE20K.
        mean: the mean of the normalisation, one number per channel.
        std: the standard deviation of the normalisation.
        interpolation: the interpolation of resizing pictures.
        held_out: share of the training pictures that are the validation split instead of the data's own, which is then
            not opened; 0 for the data's own.

    Raises:
        ValueError: for an unknown format or interpolation, a side that 32 does not divide, sides below 1, or a share
            outside [0, 1).
    """

    root: str | None = None
    image_size: int = 512
    short_side: int | None = None
    max_side: int | None = None
    format: Format = "auto"
    train_pictures: str | None = None
    train_masks: str | None = None
    val_pictures: str | None = None
    val_masks: str | None = None
    mask_suffix: str = ""
    labels: tuple[str, ...] | None = None
    values: tuple[int, ...] | None = None
    ignore: tuple[int, ...] = ()
    reduce_zero: bool | None = None
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    interpolation: str = "bilinear"
    held_out: float = 0.0

    channels = 3

    def __post_init__(self) -> None:
        check_share(self.held_out)
        check_choice("format", self.format, get_args(Format))
        check_choice("interpolation", self.interpolation, ("nearest", "bilinear", "bicubic"))
        if self.image_size < STRIDE or self.image_size % STRIDE:
            raise ValueError(f"image_size must be a multiple of {STRIDE}; got {self.image_size}")
        for name in ("short_side", "max_side"):
            side = getattr(self, name)
            if side is not None and side < 1:
                raise ValueError(f"{name} must be at least 1, or null; got {side}")

    def example(self) -> Tensor:
        """An empty picture `(1, 3, H, W)`, for counting and probing."""
        return torch.zeros(1, self.channels, self.image_size, self.image_size)

    def preprocessing(self) -> dict[str, Any]:
        """How a picture becomes the network's input, as plain values: resized, normalised, padded with zeros."""
        names = ("mean", "std", "interpolation", "short_side", "max_side")
        return {**{name: getattr(self, name) for name in names}, "pad_to_multiple_of": STRIDE}


def find_format(data: SegmentationData) -> str:
    """The format of the data: as given, or recognised.

    Raises:
        ValueError: without a root, or where nothing fits; says what was looked for.
        FileNotFoundError: names the folder that is missing.
    """
    root = find_root(data)
    if data.format != "auto":
        return data.format
    form = recognise(root)
    if form is None and any((data.train_pictures, data.train_masks, data.val_pictures, data.val_masks)):
        return "folders"
    if form is None:
        looked = "; ".join(f"{form}: {layout_of(form, 'train')}" for form in LAYOUTS)
        there = ", ".join(sorted(path.name for path in islice(root.iterdir(), 10))) or "nothing"
        raise ValueError(f"no masks recognised in {root}, which has {there}; looked for {looked}")
    return form


def find_pairs(data: SegmentationData, split: str) -> Pairs | None:
    """The files of a split; None where the data has no such split.

    Args:
        data: the section of the recipe that says where they are.
        split: `train`, `val` or `test`.

    Raises:
        ValueError: if there are no pictures or masks in its folders.
        FileNotFoundError: names a folder that was given and is missing.
    """
    root, form = find_root(data), find_format(data)
    pictures, masks = (_given(data, root, f"{split}_{what}") for what in ("pictures", "masks"))
    usual = find_folders(root, form, split, data.mask_suffix)
    if usual is None:
        if pictures is None and masks is None:
            return None
        if pictures is None or masks is None:
            missing = "pictures" if pictures is None else "masks"
            raise FileNotFoundError(f"{root}: say where the {missing} of {split} are by {split}_{missing}")
        return pair_files(Folders(pictures, masks, "", data.mask_suffix))
    usual.pictures, usual.masks = pictures or usual.pictures, masks or usual.masks
    return pair_files(usual)


def read_classes(data: SegmentationData) -> ClassTable:
    """The classes of the data: as given, as a list in the root says, or as the format has them.

    Raises:
        ValueError: if nobody says, or what is said does not fit together.
    """
    root, form = find_root(data), find_format(data)
    listed = find_list(root)
    if data.labels is not None:
        same = listed is not None and listed.names == data.labels
        listed = listed if same else ClassList(data.labels)
    if listed is None and form == "cityscapes":
        return _city_classes(data, root)
    if form == "ade20k":
        if listed is None and (root / ADE_LIST).is_file():
            listed = read_ade_list(root / ADE_LIST)
        listed = listed or ClassList(tuple(f"class {number}" for number in range(1, ADE_CLASSES + 1)))
    if listed is None:
        raise ValueError(
            f"no list of classes for {root}: give data.labels, or one of {', '.join(LISTS)} there; the first masks "
            f"have the values {ranges(_first_values(data))}"
        )
    reduce_zero = form == "ade20k" and data.values is None if data.reduce_zero is None else data.reduce_zero
    try:
        return make_table(listed, data.values, data.ignore, reduce_zero)
    except ValueError as error:
        raise ValueError(f"the classes of {root}: {error}") from error


def find_root(data: SegmentationData) -> Path:
    """The folder of the data.

    Raises:
        ValueError: if none is named.
        FileNotFoundError: if it is missing.
    """
    if data.root is None:
        raise ValueError("data.root: name the folder that pictures and masks are in")
    root = Path(data.root).expanduser()
    if not root.is_dir():
        raise FileNotFoundError(f"no folder {root}")
    return root


def layout_of(form: str, split: str) -> str:
    """What is looked for in a format, in words."""
    return LAYOUTS[form].replace("{split}", split)


def relative(path: Path, root: Path) -> str:
    """A path as it is named: relative to the root where it is in it."""
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()


def _city_classes(data: SegmentationData, root: Path) -> ClassTable:
    """Cityscapes' 19 classes; other values are ignored."""
    names, ids, colors = zip(*CITY_CLASSES, strict=True)
    reduced = (data.mask_suffix or city_suffix(root)) == CITY_TRAIN_IDS
    values = tuple(range(len(names))) if reduced else ids
    ignored = set(data.ignore) | (set() if reduced else set(CITY_VALUES) - set(ids))
    return make_table(ClassList(names, colors), data.values or values, ignored)


def _given(data: SegmentationData, root: Path, name: str) -> Path | None:
    """A folder that the configuration gives, relative to the root."""
    value = getattr(data, name, None)
    if value is None:
        return None
    path = root / Path(value).expanduser()
    if not path.is_dir():
        raise FileNotFoundError(f"{name}: no folder {path}")
    return path


def _first_values(data: SegmentationData) -> set[int]:
    """The values of a few masks, for people who have to name them."""
    pairs = find_pairs(data, "train") or find_pairs(data, "val") or Pairs()
    found: set[int] = set()
    for path in pairs.masks[:LOOKED_AT]:
        try:
            found |= set(np.unique(read_mask(path)).tolist())
        except Exception:  # decoders raise whatever they like; a check names it
            continue
    return found
