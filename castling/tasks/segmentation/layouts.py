"""Where pictures and masks of a split lie: as ADE20K and Cityscapes come, or in folders of one's own.

A picture and its mask have the same path below the folders of their split, but for how their names end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from castling.tasks.pictures import pictures_in
from castling.tasks.segmentation.classes import ClassList, Color

SPLITS = {
    "train": ("train", "training"),
    "val": ("val", "validation", "valid", "test", "testing"),
    "test": ("test", "testing"),
}
MASKS = ("annotations", "masks", "labels")  # names of the folder of masks, beside `images`
PLAIN = "images/{split} and annotations/{split} (or masks/{split}, labels/{split}), files of the same names"
LAYOUTS = {
    "ade20k": "images/training and annotations/training, files named ADE_*, or objectInfo150.txt beside them",
    "cityscapes": "leftImg8bit/{split}/CITY/*_leftImg8bit.png and gtFine/{split}/CITY/*_gtFine_labelIds.png",
    "folders": PLAIN,
}
CITY_PICTURES, CITY_TRAIN_IDS, CITY_IDS = "_leftImg8bit", "_gtFine_labelTrainIds", "_gtFine_labelIds"
# name, value in *_labelIds.png, colour; the place is the value in *_labelTrainIds.png
CITY_CLASSES: tuple[tuple[str, int, Color], ...] = (
    ("road", 7, (128, 64, 128)),
    ("sidewalk", 8, (244, 35, 232)),
    ("building", 11, (70, 70, 70)),
    ("wall", 12, (102, 102, 156)),
    ("fence", 13, (190, 153, 153)),
    ("pole", 17, (153, 153, 153)),
    ("traffic light", 19, (250, 170, 30)),
    ("traffic sign", 20, (220, 220, 0)),
    ("vegetation", 21, (107, 142, 35)),
    ("terrain", 22, (152, 251, 152)),
    ("sky", 23, (70, 130, 180)),
    ("person", 24, (220, 20, 60)),
    ("rider", 25, (255, 0, 0)),
    ("car", 26, (0, 0, 142)),
    ("truck", 27, (0, 0, 70)),
    ("bus", 28, (0, 60, 100)),
    ("train", 31, (0, 80, 100)),
    ("motorcycle", 32, (0, 0, 230)),
    ("bicycle", 33, (119, 11, 32)),
)
CITY_VALUES = range(34)  # all that *_labelIds.png may have; those of no class above are ignored
ADE_CLASSES = 150
ADE_LIST = "objectInfo150.txt"


@dataclass
class Folders:
    """The folders of a split.

    Args:
        pictures: the folder of the pictures.
        masks: the folder of the masks.
        picture_suffix: what names of pictures have before their ending.
        mask_suffix: what names of masks have there instead; files without it are no masks.
    """

    pictures: Path
    masks: Path
    picture_suffix: str = ""
    mask_suffix: str = ""


@dataclass
class Pairs:
    """The files of a split.

    Args:
        pictures: each with a mask.
        masks: the masks of each picture.
        without_mask: pictures that have none.
        without_picture: masks that belong to no picture.
    """

    pictures: list[Path] = field(default_factory=list)
    masks: list[Path] = field(default_factory=list)
    without_mask: list[Path] = field(default_factory=list)
    without_picture: list[Path] = field(default_factory=list)


def find_folders(root: Path, form: str, split: str, mask_suffix: str = "") -> Folders | None:
    """Where a split lies; None where there is no such split.

    Args:
        root: the folder of the data.
        form: `ade20k`, `cityscapes` or `folders`.
        split: `train`, `val`, for which a test split stands in where there is no other, or `test`.
        mask_suffix: what names of masks have before their ending; Cityscapes' own by default.
    """
    names = SPLITS[split]
    if form == "cityscapes":
        found = _first(root, [("leftImg8bit", "gtFine")], names)
        if found is None:
            return None
        return Folders(*found, CITY_PICTURES, mask_suffix or city_suffix(root))
    found = _first(root, [("images", masks) for masks in MASKS], names)
    return None if found is None else Folders(*found, "", mask_suffix)


def city_suffix(root: Path) -> str:
    """Which of Cityscapes' masks are used: those with numbers for training where one has been made, in any split."""
    names = pictures_in(root / "gtFine", root)
    return CITY_TRAIN_IDS if any(Path(name).stem.endswith(CITY_TRAIN_IDS) for name in names) else CITY_IDS


def recognise(root: Path) -> str | None:
    """The format in which a folder has pictures and masks; None for none that is known."""
    if find_folders(root, "cityscapes", "train") or find_folders(root, "cityscapes", "val"):
        return "cityscapes"
    if not any(_has_masks(find_folders(root, "folders", split)) for split in ("train", "val")):
        return None
    training = root / "annotations" / "training"
    named = training.is_dir() and next(training.glob("ADE_*.png"), None) is not None
    return "ade20k" if training.is_dir() and (named or (root / ADE_LIST).is_file()) else "folders"


def pair_files(folders: Folders) -> Pairs:
    """Pictures with their masks, by name.

    Raises:
        ValueError: if there are no pictures, or no masks.
    """
    pictures = _by_stem(folders.pictures, folders.picture_suffix)
    masks = _by_stem(folders.masks, folders.mask_suffix)
    for what, there, folder, suffix in (
        ("pictures", pictures, folders.pictures, folders.picture_suffix),
        ("masks", masks, folders.masks, folders.mask_suffix),
    ):
        if not there:
            raise ValueError(f"no {what} in {folder}" + (f" whose names end in {suffix!r}" if suffix else ""))
    pairs = Pairs()
    for stem, paths in pictures.items():
        if stem in masks:
            pairs.pictures += paths
            pairs.masks += masks[stem][:1] * len(paths)
        else:
            pairs.without_mask += paths
    # Of two masks of one name, nobody says which is right.
    pairs.without_picture = [path for stem, paths in masks.items() for path in paths[stem in pictures :]]
    return pairs


def read_ade_list(path: Path) -> ClassList:
    """The names of ADE20K's classes, of its own table: one on each line, behind numbers; the first of its words.

    Raises:
        ValueError: if it has no names.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text: {error}") from error
    rows = [line.split("\t") for line in lines if line.strip()]
    names = [row[-1].replace(";", ",").split(",")[0].strip() for row in rows if row[0].strip().isdecimal()]
    if not names:
        raise ValueError(f"{path}: expected a number and, behind tabs, a name on each line")
    again = [names[:place].count(name) for place, name in enumerate(names)]  # first words may be there twice
    return ClassList(tuple(f"{name} {times + 1}" if times else name for name, times in zip(names, again, strict=True)))


def _first(root: Path, kinds: list[tuple[str, str]], splits: tuple[str, ...]) -> tuple[Path, Path] | None:
    for split in splits:
        for pictures, masks in kinds:
            if (root / pictures / split).is_dir() and (root / masks / split).is_dir():
                return root / pictures / split, root / masks / split
    return None


def _has_masks(folders: Folders | None) -> bool:
    return folders is not None and next(pictures_in(folders.masks, folders.masks), None) is not None


def _by_stem(folder: Path, suffix: str) -> dict[str, list[Path]]:
    """Files of a folder by their path in it, without suffix and ending."""
    found: dict[str, list[Path]] = {}
    for name in sorted(pictures_in(folder, folder)):
        stem = Path(name).with_suffix("").as_posix()
        if stem.endswith(suffix):
            found.setdefault(stem[: len(stem) - len(suffix)], []).append(folder / name)
    return found
