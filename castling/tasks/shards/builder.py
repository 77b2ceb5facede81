"""An index while archives are walked: what there is, without an object for each picture, and what is wrong with it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from castling.tasks.shards.index import Listed, ShardIndex

LARGEST = 2**30  # bytes of one picture
NAMED = 3


class Complaint(NamedTuple):
    """What is wrong with a member of an archive; an index with an error is not used.

    Args:
        level: `error` or `warning`.
        kind: what it is, in plural.
        name: which.
    """

    level: Literal["error", "warning"]
    kind: str
    name: str


@dataclass
class IndexBuilder:
    """An index while it grows, without an object for each picture."""

    complaints: list[Complaint] = field(default_factory=list)
    groups: list[tuple[str, int]] = field(default_factory=list)
    _numbers: dict[str, array[int]] = field(
        default_factory=lambda: {name: array("q") for name in ("group", "offset", "size", "label", "name_end")}
    )
    _names: bytearray = field(default_factory=bytearray)
    _texts: dict[str, int] = field(default_factory=dict)

    def begin_group(self, prefix: str, file: int) -> None:
        """Pictures that follow are in this file, and their names begin so."""
        self.groups.append((prefix, file))

    def add(self, name: str, offset: int, size: int, label: str | None) -> None:
        """Add a picture."""
        if size > LARGEST:
            self.complain("error", f"pictures of more than {LARGEST:,} bytes", f"{self.groups[-1][0]}/{name}")
        self._names += name.encode("utf-8", "surrogateescape")
        number = -1 if label is None else self._texts.setdefault(label, len(self._texts))
        values = (len(self.groups) - 1, offset, size, number, len(self._names))
        for column, value in zip(self._numbers.values(), values, strict=True):
            column.append(value)

    def complain(self, level: Literal["error", "warning"], kind: str, name: str) -> None:
        """Note what is wrong with a member, by its name with that of its archive."""
        self.complaints.append(Complaint(level, kind, name))

    def build(self, root: Path, files: list[Listed]) -> ShardIndex:
        """The index of all that was added."""
        types = {"group": np.int32, "label": np.int32, "size": np.int32}
        columns: dict[str, Any] = {
            name: np.array(column, types.get(name, np.int64)) for name, column in self._numbers.items()
        }
        texts = [text.encode("utf-8", "surrogateescape") for text in self._texts]
        return ShardIndex(
            root=root,
            files=files,
            groups=self.groups,
            **columns,
            names=np.frombuffer(bytes(self._names), np.uint8),
            text_end=np.cumsum([len(text) for text in texts], dtype=np.int64),
            texts=np.frombuffer(b"".join(texts), np.uint8),
        )


def refuse_errors(complaints: Sequence[Complaint]) -> None:
    """Raise what is wrong in one line, if anything is.

    Raises:
        ValueError: names the first of each kind.
    """
    errors = [complaint for complaint in complaints if complaint.level == "error"]
    if errors:
        raise ValueError("; ".join(complaint_lines(errors)))


def complaint_lines(complaints: Sequence[Complaint]) -> list[str]:
    """A line for each kind of complaint, with the first names."""
    kinds: dict[str, list[str]] = {}
    for complaint in complaints:
        kinds.setdefault(complaint.kind, []).append(complaint.name)
    return [
        f"{kind}: {', '.join(names[:NAMED])}" + (f" and {len(names) - NAMED:,} more" if len(names) > NAMED else "")
        for kind, names in kinds.items()
    ]
