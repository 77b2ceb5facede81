"""Where every picture of some archives lies, as arrays: 1.3 million of them are some 70 MB that all processes share.

The arrays are kept as one safetensors file, written whole or not at all, and mapped into memory.
"""

from __future__ import annotations

import json
import os
import secrets
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

FORM = "castling shards 1"  # another form of index gets another number
DTYPES = {"I64": "<i8", "I32": "<i4", "U8": "u1"}
ARRAYS = {"offset": "I64", "name_end": "I64", "text_end": "I64", "group": "I32", "size": "I32", "label": "I32"}
ARRAYS |= {"names": "U8", "texts": "U8"}
NO_CHECKSUM = "00000000"


class Listed(NamedTuple):
    """A file that an index was made from; another size or time make the index old.

    Args:
        name: its path relative to the root.
        size: its bytes.
        time: when it was last changed, in nanoseconds.
    """

    name: str
    size: int
    time: int


def listed(root: Path, paths: Sequence[Path]) -> list[Listed]:
    """The files as an index notes them."""
    found = []
    for path in paths:
        seen = path.stat()
        found.append(Listed(path.relative_to(root).as_posix(), seen.st_size, seen.st_mtime_ns))
    return found


@dataclass
class ShardIndex:
    """Pictures by number: which file, where, how long, which label, which name.

    Args:
        root: what the files' names are relative to.
        files: what the index was made from; the archives, and files with labels.
        groups: what names of pictures begin with, and the number of the file that they are in.
        group: the group of each picture `(N,)`.
        offset: its first byte in the file `(N,)`.
        size: its bytes `(N,)`.
        label: the number of its label's text `(N,)`, -1 where it has none.
        name_end: where its name ends among `names` `(N,)`.
        names: all names as bytes, one behind the other.
        text_end: where the text of each label ends among `texts`.
        texts: the texts of all labels as bytes.
        path: the file that the arrays are mapped from; None where they are in memory.
        checksum: that of the file.
    """

    root: Path
    files: list[Listed]
    groups: list[tuple[str, int]]
    group: np.ndarray
    offset: np.ndarray
    size: np.ndarray
    label: np.ndarray
    name_end: np.ndarray
    names: np.ndarray
    text_end: np.ndarray
    texts: np.ndarray
    path: Path | None = None
    checksum: str = NO_CHECKSUM

    def __len__(self) -> int:
        return len(self.offset)

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Another process maps the same file again, rather than getting a copy of the arrays."""
        if self.path is None:
            return super().__reduce__()
        return _map_again, (self.path, self.root, self.checksum)

    def name(self, number: int) -> str:
        """Group and name of a picture."""
        begin = int(self.name_end[number - 1]) if number else 0
        return f"{self.groups[self.group[number]][0]}/{_text(self.names[begin : self.name_end[number]])}"

    def label_texts(self) -> list[str]:
        """The texts of all labels."""
        begins = [0, *self.text_end.tolist()]
        return [_text(self.texts[begin:end]) for begin, end in pairwise(begins)]


def write_index(path: Path, index: ShardIndex) -> None:
    """Write an index beside its place, flush it and rename it: whole or not there.

    The form is that of safetensors, numbers of eight bytes first, so that each array begins where it can be mapped.
    """
    header: dict[str, Any] = {}
    begin, arrays = 0, []
    for name, kind in ARRAYS.items():
        values = np.ascontiguousarray(getattr(index, name), DTYPES[kind])
        header[name] = {"dtype": kind, "shape": [len(values)], "data_offsets": [begin, begin + values.nbytes]}
        begin += values.nbytes
        arrays.append(values)
    about = json.dumps({"files": index.files, "groups": index.groups})
    header["__metadata__"] = {"form": FORM, "about": about, "checksum": NO_CHECKSUM}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    checksum = zlib.crc32(text)
    for values in arrays:
        checksum = zlib.crc32(values.data, checksum)
    text = text.replace(NO_CHECKSUM.encode(), f"{checksum:08x}".encode())
    path.parent.mkdir(parents=True, exist_ok=True)
    # A name of its own: other processes may be at the same index.
    beside = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        with beside.open("xb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for values in arrays:
                file.write(values.data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def map_index(path: Path, root: Path) -> ShardIndex:
    """Map an index into memory.

    Raises:
        ValueError: if it is damaged; or KeyError or TypeError, as whatever is in there is taken for a header.
    """
    with path.open("rb") as file:
        length, total = int.from_bytes(file.read(8), "little"), os.fstat(file.fileno()).st_size
        if 8 + length > total:
            raise ValueError("it is cut off")
        text = file.read(length)
        header = json.loads(text)
        about = header.pop("__metadata__")
        if about["form"] != FORM:
            raise ValueError(f"its form is not {FORM!r}")
        told = about["checksum"]
        checksum = zlib.crc32(text.replace(told.encode(), NO_CHECKSUM.encode()))
        # Read, not mapped: pages that are only looked through need not stay in memory.
        while part := file.read(2**20):
            checksum = zlib.crc32(part, checksum)
    if f"{checksum:08x}" != told:
        raise ValueError("its checksum does not fit")
    mapped = np.memmap(path, np.uint8, "r", offset=8 + length)
    arrays = {
        name: mapped[slice(*header[name]["data_offsets"])].view(np.ndarray).view(DTYPES[kind])
        for name, kind in ARRAYS.items()
    }
    content = json.loads(about["about"])
    files = [Listed(*entry) for entry in content["files"]]
    groups = [(prefix, number) for prefix, number in content["groups"]]
    return ShardIndex(root, files, groups, **arrays, path=path, checksum=told)


def _map_again(path: Path, root: Path, checksum: str) -> ShardIndex:
    index = map_index(path, root)
    if index.checksum != checksum:
        raise ValueError(f"{path} has changed since this process began")
    return index


def _text(content: np.ndarray) -> str:
    return content.tobytes().decode("utf-8", "surrogateescape")
