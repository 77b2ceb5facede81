"""Which archives of a folder are which split: by ImageNet's own names, by folders, or by a word in their names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from castling.tasks.shards.builder import IndexBuilder
from castling.tasks.shards.imagenet import TRAIN, VAL, label_files, scan_train, scan_val
from castling.tasks.shards.index import ShardIndex
from castling.tasks.shards.kept import open_index
from castling.tasks.shards.webdataset import scan_shards

SPLITS = {"train": ("train",), "val": ("val", "validation", "test")}
COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".tar.lz4")
EXPECTED = f"train-000000.tar and val-000000.tar, or such archives in train/ and val/, or {TRAIN} and {VAL}"


def archives_of(root: Path, names: Sequence[str]) -> list[Path]:
    """The archives of a split, sorted; those of the first of its names that there are any of.

    Args:
        root: the folder.
        names: what the split may be called.

    Raises:
        ValueError: if they are compressed.
    """
    for name, official in (("train", TRAIN), ("val", VAL)):
        if name in names and (root / official).is_file():
            return [root / official]
    for name in names:
        inside = sorted((root / name).rglob("*")) if (root / name).is_dir() else []
        beside = [path for path in sorted(root.iterdir()) if name in re.split(r"[^a-z]+", path.name.lower())]
        for paths in (inside, beside):
            found = [path for path in paths if _is_archive(path, (".tar", *COMPRESSED))]
            _refuse_compressed(found)
            if found:
                return found
    return []


def all_archives(root: Path) -> list[Path]:
    """All archives of a folder and those below it, sorted.

    Raises:
        ValueError: if some are compressed.
    """
    found = [path for path in sorted(root.rglob("*")) if _is_archive(path, (".tar", *COMPRESSED))]
    _refuse_compressed(found)
    return found


def has_archives(root: Path) -> bool:
    """Whether there are archives to train on, compressed ones too."""
    try:
        return bool(archives_of(root, SPLITS["train"]))
    except ValueError:
        return True


def index_of(root: Path, split: str, paths: Sequence[Path]) -> ShardIndex:
    """The index of the archives of a split, made where it is not kept yet.

    Args:
        root: the folder.
        split: what the index is called.
        paths: the archives.

    Raises:
        ValueError: names what cannot be read, or says that there is no picture.
    """
    labels = label_files(root) if paths[0].name == VAL else []
    return open_index(root, split, [*paths, *labels], lambda builder: scan_archives(root, paths, builder))


def scan_archives(root: Path, paths: Sequence[Path], builder: IndexBuilder) -> None:
    """Add the pictures of archives of whatever layout they are.

    Args:
        root: the folder that names are relative to.
        paths: the archives.
        builder: what they are added to, and what is told what is wrong.
    """
    if paths[0].name == TRAIN:
        scan_train(paths[0], builder)
    elif paths[0].name == VAL:
        scan_val(paths[0], label_files(root), builder)
    else:
        scan_shards(root, paths, builder)


def _is_archive(path: Path, endings: tuple[str, ...]) -> bool:
    return path.name.lower().endswith(endings) and not path.name.startswith(".") and path.is_file()


def _refuse_compressed(paths: Sequence[Path]) -> None:
    wrong = [path for path in paths if path.name.lower().endswith(COMPRESSED)]
    if wrong:
        raise ValueError(
            f"{wrong[0]} is compressed, as {len(wrong)} of {len(paths)} archives are: pictures are read in place, "
            "so unpack it to a plain .tar, which is hardly larger"
        )
