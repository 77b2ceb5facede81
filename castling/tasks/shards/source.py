"""A split of pictures in archives, behind the interface of every source: read by number, in place, from any process."""

from __future__ import annotations

import io
import os
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from castling.tasks.pictures import read_picture
from castling.tasks.shards.index import ShardIndex
from castling.tasks.shards.tar_walk import read_at

MOST_OPEN = 256  # archives that a process keeps open, where the system lets it
SHARE_OPEN = 4  # of the files that a process may open


class OpenFiles:
    """The archives that this process has open, those that were read last; another process opens its own."""

    def __init__(self) -> None:
        self._files: OrderedDict[Path, BinaryIO] = OrderedDict()
        self._process = 0
        self._most = _most_open()

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenFiles, ()

    def read(self, path: Path, offset: int, size: int) -> bytes:
        """Bytes of a file.

        Raises:
            ValueError: if it ends before.
        """
        if self._process != os.getpid():  # a fork: the parent's files are closed in here, not in the parent
            self._files, self._process = OrderedDict(), os.getpid()
        file = self._files.pop(path, None)
        if file is None:
            file = path.open("rb", buffering=0)
        self._files[path] = file
        if len(self._files) > self._most:
            self._files.popitem(last=False)  # closed once nobody reads it
        content = read_at(file, size, offset)
        if len(content) < size:
            raise ValueError(f"{path} ends before byte {offset + size:,}: it has changed since its index was made")
        return content


class NamedBytes(io.BytesIO):
    """Bytes in memory that errors of decoders call by a name, instead of a number that differs every time."""

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__(content)
        self._name = name

    def __repr__(self) -> str:
        return repr(self._name)


@dataclass
class ShardPictures:
    """Pictures in archives, of which nothing is known.

    Args:
        index: where they are.
        rows: those of the index that belong to it, in order; None for all.
    """

    index: ShardIndex
    rows: np.ndarray | None = None
    files: OpenFiles = field(default_factory=OpenFiles, repr=False)

    def __len__(self) -> int:
        return len(self.index if self.rows is None else self.rows)

    def name(self, index: int) -> str:
        """Archive, or folder that ImageNet's would be unpacked to, and the picture's name in it."""
        return self.index.name(self._row(index))

    def read(self, index: int) -> tuple[Image.Image, Any]:
        """A picture, decoded to the end, of which nothing is known."""
        return read_picture(NamedBytes(self.stored(index), self.name(index))), None

    def stored(self, index: int) -> bytes:
        """The bytes of a picture as they are in the archive.

        Raises:
            ValueError: if the archive ends before.
        """
        row, table = self._row(index), self.index
        path = table.root / table.files[table.groups[table.group[row]][1]].name
        return self.files.read(path, int(table.offset[row]), int(table.size[row]))

    def _row(self, index: int) -> int:
        return index if self.rows is None else int(self.rows[index])


@dataclass
class ShardSource(ShardPictures):
    """Pictures in archives with their classes.

    Args:
        index: where they are.
        rows: those of the index that belong to it, in order; None for all.
        labels: class names.
        classes: the class of each label's text in the index.
    """

    labels: list[str] = field(default_factory=list)
    classes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def read(self, index: int) -> tuple[Image.Image, int]:
        """A picture, decoded to the end, and its class.

        Raises:
            ValueError: if it has no label.
        """
        target = self.target(index)
        if target < 0:
            raise ValueError(f"{self.name(index)} has no label")
        return super().read(index)[0], target

    def target(self, index: int) -> int:
        """The class of a picture, -1 where it has no label."""
        number = int(self.index.label[self._row(index)])
        return int(self.classes[number]) if number >= 0 else -1


def _most_open() -> int:
    try:
        import resource  # not on Windows
    except ImportError:
        return MOST_OPEN
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_OPEN if soft == resource.RLIM_INFINITY else max(8, min(MOST_OPEN, soft // SHARE_OPEN))
