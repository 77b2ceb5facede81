"""ImageNet's own archives: training pictures in a tar of one tar for each class, validation pictures in one flat tar.

Their names and their order are those of the unpacked folders, `train/CLASS/FILE` sorted, so that a run sees the same
pictures in the same steps whether they were unpacked or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from castling.extras import import_extra
from castling.tasks.pictures import ENDINGS
from castling.tasks.shards.builder import IndexBuilder
from castling.tasks.shards.tar_walk import BrokenTar, Member, Window, refusal_of, walk_tar

TRAIN, VAL = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
VAL_LABELS = ("val_labels.txt", "imagenet_2012_validation_synset_labels.txt")
GROUND_TRUTH, META = "ILSVRC2012_validation_ground_truth.txt", "meta.mat"
KIT_FOLDERS = ("", "data", "ILSVRC2012_devkit_t12/data")
EXPECTED = (
    f"beside {VAL} either {VAL_LABELS[0]}, with a class such as n01440764 for each picture in the order of their "
    f"names, or lines of name and class; or the development kit's {GROUND_TRUTH} and {META}"
)


def label_files(root: Path) -> list[Path]:
    """The files that say the classes of validation pictures; empty where there are none."""
    for name in VAL_LABELS:
        if (root / name).is_file():
            return [root / name]
    for folder in KIT_FOLDERS:
        if (root / folder / GROUND_TRUTH).is_file():
            return [root / folder / GROUND_TRUTH, *filter(Path.is_file, [root / folder / META])]
    return []


def scan_train(path: Path, builder: IndexBuilder) -> None:
    """Add the pictures of the training archive, class by class.

    Args:
        path: the archive.
        builder: what they are added to, and what is told what is wrong.
    """
    with path.open("rb", buffering=0) as file:
        window = Window(file)
        for archive in sorted(_files(window, path.name, builder, (".tar",)), key=lambda member: member.name):
            label = Path(archive.name).stem
            builder.begin_group(f"train/{label}", 0)
            place = f"{path.name}/{archive.name}"
            inside = _files(window, place, builder, ENDINGS, archive.offset, archive.offset + archive.size)
            for member in sorted(inside, key=lambda member: member.name):
                builder.add(member.name, member.offset, member.size, label)


def scan_val(path: Path, labels: list[Path], builder: IndexBuilder) -> None:
    """Add the pictures of the validation archive, by class where the labels are known.

    Args:
        path: the archive.
        labels: the files with the labels, as `label_files` finds them.
        builder: what they are added to, and what is told what is wrong.

    Raises:
        ValueError: if the labels do not fit the pictures.
    """
    with path.open("rb", buffering=0) as file:
        members = sorted(_files(Window(file), path.name, builder, ENDINGS), key=lambda member: member.name)
    classes = _read_labels(labels, [member.name for member in members]) if labels and members else {}
    group = None
    for label, member in sorted((classes.get(member.name, ""), member) for member in members):
        if label != group:
            builder.begin_group(f"val/{label}" if label else "val", 0)
            group = label
        builder.add(member.name, member.offset, member.size, label or None)


def _files(
    window: Window, name: str, builder: IndexBuilder, endings: tuple[str, ...], start: int = 0, end: int | None = None
) -> list[Member]:
    found: dict[str, Member] = {}
    try:
        for member in walk_tar(window, name, start, end):
            if (refusal := refusal_of(member)) is not None:
                builder.complain("error", refusal, f"{name}/{member.name}")
            file = member.name.rpartition("/")[2]
            if member.kind == "file" and file.lower().endswith(endings) and not file.startswith("."):
                if file in found:
                    builder.complain("error", "two members with one name", f"{name}/{member.name}")
                found[file] = member._replace(name=file)
    except BrokenTar as error:
        builder.complain("error", "archives that cannot be read", str(error))
    return list(found.values())


def _read_labels(paths: list[Path], names: list[str]) -> Mapping[str, str]:
    """The class of each picture.

    Args:
        paths: the files with the labels.
        names: the pictures, sorted.
    """
    path = paths[0]
    rows = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if path.name == GROUND_TRUTH:
        classes = _classes_of_kit(paths)
        unknown = sorted({row[0] for row in rows} - classes.keys())
        if unknown:
            raise ValueError(f"{path} has classes that {paths[1]} lacks: {', '.join(unknown[:5])}")
        rows = [[classes[row[0]]] for row in rows]
    if all(len(row) == 1 for row in rows):
        if len(rows) != len(names):
            raise ValueError(f"{path} has {len(rows):,} labels for {len(names):,} pictures")
        return dict(zip(names, (row[0] for row in rows), strict=True))
    if not all(len(row) == 2 for row in rows):
        wrong = next(number for number, row in enumerate(rows, 1) if len(row) != 2)
        raise ValueError(f"{path}: line {wrong} is neither a class nor a name and a class")
    found = {name.rpartition("/")[2]: label for name, label in rows}
    missing = [name for name in names if name not in found]
    if missing:
        raise ValueError(f"{path} has no label for {len(missing):,} pictures, such as {missing[0]}")
    return found


def _classes_of_kit(paths: list[Path]) -> dict[str, str]:
    """The class of each number that the development kit gives it."""
    if len(paths) < 2:
        raise ValueError(
            f"{paths[0]} has numbers that only {META} explains, which is not beside it; expected {EXPECTED}"
        )
    scipy_io = import_extra("scipy.io", "segmentation")
    try:
        synsets = scipy_io.loadmat(paths[1], squeeze_me=True)["synsets"]
        pairs = zip(synsets["ILSVRC2012_ID"].tolist(), synsets["WNID"].tolist(), strict=True)
        return {str(int(number)): str(label) for number, label in pairs}
    except Exception as error:  # a damaged file raises nearly anything
        raise ValueError(f"{paths[1]}: no table 'synsets' with ILSVRC2012_ID and WNID in it ({error})") from error
