"""WebDataset's shards: `train-000000.tar` with `KEY.jpg` and `KEY.cls`; the members of one key are one example."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from castling.tasks.shards.builder import IndexBuilder
from castling.tasks.shards.labels import LABELS, MOST_OF_A_LABEL, PICTURES, label_text, parts_of
from castling.tasks.shards.tar_walk import BrokenTar, Window, refusal_of, walk_tar


class _Example:
    """The members of one key that are looked at."""

    __slots__ = ("label", "label_from", "picture")

    def __init__(self) -> None:
        self.picture: _Stored | None = None
        self.label: str | None = None
        self.label_from: str | None = None


class _Stored(NamedTuple):
    name: str
    offset: int
    size: int


def scan_shards(root: Path, paths: Sequence[Path], builder: IndexBuilder) -> None:
    """Add the pictures of shards in the order in which they lie there.

    Args:
        root: the folder that names are relative to.
        paths: the shards.
        builder: what they are added to, and what is told what is wrong.
    """
    for number, path in enumerate(paths):
        name = path.relative_to(root).as_posix()
        builder.begin_group(name, number)
        with path.open("rb", buffering=0) as file:
            examples = _examples(Window(file), name, builder)
        for key, example in examples.items():
            if example.picture is None:
                builder.complain("warning", "labels without a picture", f"{name}/{key}")
            else:
                builder.add(*example.picture, example.label)


def _examples(window: Window, shard: str, builder: IndexBuilder) -> dict[str, _Example]:
    found: dict[str, _Example] = {}
    try:
        for member in walk_tar(window, shard):
            place = f"{shard}/{member.name}"
            if (refusal := refusal_of(member)) is not None:
                builder.complain("error", refusal, place)
            parts = parts_of(member.name.removeprefix("./"))
            if member.kind != "file" or parts is None:
                continue
            if parts.ending in PICTURES:
                example = found.setdefault(parts.key, _Example())
                if example.picture is not None:
                    builder.complain("error", "two pictures with one key", place)
                example.picture = _Stored(member.name.removeprefix("./"), member.offset, member.size)
            elif parts.ending in LABELS:
                content = window.at(member.offset, min(member.size, MOST_OF_A_LABEL[parts.ending] + 1))
                if not _take_label(found.setdefault(parts.key, _Example()), parts.ending, content):
                    builder.complain("error", "two labels with one key", place)
            elif parts.ending.rpartition(".")[2] in PICTURES:
                builder.complain("warning", "pictures passed over, as a key ends at the first dot of a name", place)
    except BrokenTar as error:
        builder.complain("error", "archives that cannot be read", str(error))
    return found


def _take_label(example: _Example, ending: str, content: bytes) -> bool:
    """Keep a label if it counts more than what is known; whether it is the first of its kind."""
    if example.label_from == ending:
        return False
    if example.label_from is None or LABELS.index(ending) < LABELS.index(example.label_from):
        example.label_from = ending
        example.label = None if len(content) > MOST_OF_A_LABEL[ending] else label_text(ending, content)
    return True
