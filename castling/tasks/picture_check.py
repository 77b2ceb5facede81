"""What can be wrong with pictures, whatever the task: they cannot be read, are missing, or there twice."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from castling.tasks.data_check import CheckOptions, Finding, finding
from castling.tasks.pictures import in_channels, open_picture_file, read_picture
from castling.tasks.shards.source import NamedBytes
from castling.tasks.shards.tar_walk import read_at

FEW = 100  # pictures that are read sooner than processes start
Item = TypeVar("Item")
Facts = TypeVar("Facts")


class Stored(NamedTuple):
    """A picture in an archive.

    Args:
        path: the archive.
        name: what messages call it.
        offset: the place of its first byte.
        size: its bytes.
    """

    path: Path
    name: str
    offset: int
    size: int

    def open(self) -> NamedBytes:
        """Its bytes.

        Raises:
            ValueError: if the archive ends before.
        """
        with self.path.open("rb", buffering=0) as file:
            content = read_at(file, self.size, self.offset)
        if len(content) < self.size:
            raise ValueError(f"{self.path} ends before byte {self.offset + self.size:,}")
        return NamedBytes(content, self.name)


class PictureFacts(NamedTuple):
    """What a picture's file has.

    Args:
        size: width and height; zeros where it cannot be read.
        digest: the digest of its pixels, whatever the file's format; empty where it cannot be read.
        error: the reason why it cannot be read; None where it can.
        stored: width and height before it was turned upright.
    """

    size: tuple[int, int]
    digest: bytes
    error: str | None
    stored: tuple[int, int]


def look(path: Path | Stored) -> PictureFacts:
    """Decode a picture to the end, in a file of its own or in an archive."""
    try:
        opened = path.open() if isinstance(path, Stored) else path
        picture = read_picture(opened)
        with open_picture_file(opened) as file:
            stored = file.size
        pixels = in_channels(picture, 3)
        digest = hashlib.blake2b(f"{pixels.size}".encode(), digest_size=16)
        digest.update(pixels.tobytes())
        return PictureFacts(picture.size, digest.digest(), None, stored)
    except FileNotFoundError:
        return PictureFacts((0, 0), b"", "no such file", (0, 0))
    except Exception as error:  # decoders raise whatever they like
        return PictureFacts((0, 0), b"", f"{type(error).__name__}: {error}", (0, 0))


def look_at(paths: Sequence[Path | Stored], options: CheckOptions) -> list[PictureFacts]:
    """Decode many pictures, in processes where that is worth it.

    Raises:
        ValueError: if a picture ended the process that read it.
    """
    return read_all(look, paths, options)


def read_all(read: Callable[[Item], Facts], items: Sequence[Item], options: CheckOptions) -> list[Facts]:
    """Read many pictures, or what belongs to them, in processes where that is worth it.

    Args:
        read: reads one; a function that can be sent to another process.
        items: what it is given: paths, or what has them.
        options: the number of processes, and who is told of the progress.

    Raises:
        ValueError: if a picture ended the process that read it.
    """
    found: list[Facts] = []
    if options.workers < 1 or len(items) < FEW:
        for item in items:
            found.append(read(item))
            options.on_picture(len(found), len(items))
        return found
    try:
        with ProcessPoolExecutor(min(options.workers, os.cpu_count() or 1)) as pool:
            for facts in pool.map(read, items, chunksize=8):
                found.append(facts)
                options.on_picture(len(found), len(items))
    except BrokenProcessPool as error:
        near = items[len(found)]
        raise ValueError(f"a reading process ended at {near} or soon after; --workers 0 shows which picture") from error
    return found


def picture_findings(split: str, names: Sequence[str], looks: Sequence[PictureFacts]) -> list[Finding]:
    """Pictures of a split that cannot be read or are missing."""
    pairs = list(zip(names, looks, strict=True))
    missing = [name for name, seen in pairs if seen.error == "no such file"]
    broken = [f"{name} ({seen.error})" for name, seen in pairs if seen.error not in (None, "no such file")]
    return [
        *finding("error", "pictures that cannot be read", split, broken),
        *finding("error", "pictures that are listed and not there", split, missing),
    ]


def stored_finding(
    split: str, names: Sequence[str], looks: Sequence[PictureFacts], sizes: Iterable[Sequence[int]]
) -> list[Finding]:
    """Pictures whose annotations have the size that they are stored in, rather than that of the upright ones."""
    kind = "pictures annotated as they are stored, not as Exif turns them: they are left so"
    places = [
        name for name, seen, size in zip(names, looks, sizes, strict=True) if seen.size != tuple(size) == seen.stored
    ]
    return finding("warning", kind, split, places)


def duplicate_findings(splits: Mapping[str, tuple[Sequence[str], Sequence[PictureFacts]]]) -> list[Finding]:
    """Pictures with the same pixels: within a split they may be meant, between two they make evaluation too good.

    Args:
        splits: names and looks of each split's pictures.
    """
    same: dict[bytes, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for split, (names, looks) in splits.items():
        for name, seen in zip(names, looks, strict=True):
            if seen.digest:
                same[seen.digest][split].append(name)
    within: dict[str, list[str]] = defaultdict(list)
    between: dict[str, list[str]] = defaultdict(list)
    for copies in same.values():
        for split, names in copies.items():
            within[split] += [f"{name} = {names[0]}" for name in names[1:]]
        first, *others = copies
        for split in others:
            between[f"{first} and {split}"].append(f"{copies[first][0]} = {copies[split][0]}")
    return [
        *(found for split in between for found in finding("error", "pictures in both", split, between[split])),
        *(found for split in within for found in finding("warning", "pictures there twice", split, within[split])),
    ]


def sizes_of(looks: Iterable[PictureFacts]) -> dict[str, tuple[int, int]]:
    """The smallest, the median and the largest picture, by area; nothing where none can be read."""
    sizes = sorted((seen.size for seen in looks if seen.error is None), key=lambda size: (size[0] * size[1], size))
    if not sizes:
        return {}
    return {"smallest": sizes[0], "median": sizes[len(sizes) // 2], "largest": sizes[-1]}


def spread(places: Sequence[int], count: int) -> list[int]:
    """A number of places, as far from each other as can be.

    Example:
        >>> spread(range(100), 5)
        [0, 25, 50, 74, 99]
    """
    if len(places) <= count:
        return list(places)
    return [places[index] for index in np.linspace(0, len(places) - 1, count).round().astype(int)]
