"""All that archives of a split hold, in plain values for a check: pictures by class, and everything that is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from castling.tasks.data_check import Finding, Level, finding
from castling.tasks.picture_check import Stored
from castling.tasks.shards.builder import Complaint, IndexBuilder
from castling.tasks.shards.index import ShardIndex, listed
from castling.tasks.shards.layout import archives_of, scan_archives
from castling.tasks.shards.opening import CLASSES, class_names, class_of


@dataclass
class Listing:
    """The pictures of a split.

    Args:
        pictures: where each is.
        classes: names of pictures by class; those without a label are in none.
        findings: what is wrong with members and labels.
    """

    pictures: list[Stored]
    classes: dict[str, list[str]]
    findings: list[Finding]


def list_archives(root: Path, splits: Mapping[str, Sequence[str]]) -> dict[str, Listing]:
    """Walk all archives of some splits.

    Args:
        root: the folder of the archives.
        splits: what each split may be called; the first one says which classes there are.

    Raises:
        ValueError: if they are compressed, or files with labels do not fit.
    """
    found: dict[str, Listing] = {}
    names: list[str] = []
    place: dict[str, int] = {}
    for split, words in splits.items():
        paths = archives_of(root, words)
        if not paths:
            continue
        builder = IndexBuilder()
        scan_archives(root, paths, builder)
        index = builder.build(root, listed(root, paths))
        if not found:
            names, place = class_names(root, index)
        found[split] = _listing(split, index, builder.complaints, names, place)
    return found


def _listing(
    split: str, index: ShardIndex, complaints: Sequence[Complaint], names: Sequence[str], place: dict[str, int]
) -> Listing:
    texts = index.label_texts()
    # A label that is no class stands for itself, so that it is found to be unknown.
    labels = [names[number] if (number := class_of(text, place)) >= 0 else text for text in texts]
    unknown = [text for text in texts if class_of(text, place) < 0] if split == "train" else []
    pictures: list[Stored] = []
    without: list[str] = []
    classes: dict[str, list[str]] = {name: [] for name in names}
    for row in range(len(index)):
        path = index.root / index.files[index.groups[index.group[row]][1]].name
        picture = Stored(path, index.name(row), int(index.offset[row]), int(index.size[row]))
        pictures.append(picture)
        label = int(index.label[row])
        members = without if label < 0 else classes.setdefault(labels[label], [])
        members.append(picture.name)
    kinds: dict[tuple[Level, str], list[str]] = {}
    for level, kind, name in complaints:
        kinds.setdefault((level, kind), []).append(name)
    findings = [one for (level, kind), some in kinds.items() for one in finding(level, kind, split, some)]
    findings += finding("error", "pictures without a label", split, without)
    return Listing(pictures, classes, [*findings, *finding("error", f"classes that {CLASSES} lacks", split, unknown)])
