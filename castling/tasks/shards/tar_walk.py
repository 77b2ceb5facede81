"""The members of a tar archive by their headers alone: where each begins and how long it is, to be read in place.

Reads ustar, GNU's and pax archives (POSIX.1-2001) between two positions of a file, as ImageNet's archives lie within
another. Stricter than tar itself: what is cut off, damaged or goes on behind its end is said, not passed over.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO, Literal, NamedTuple

BLOCK = 512
AHEAD = 4096  # a label, and the header of the picture behind it, mostly come with the header of the label
MOST_OF_A_NAME = 2**20  # bytes of an extended header
ZEROS = bytes(BLOCK)
COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}

Kind = Literal["file", "folder", "link", "sparse", "special"]
KINDS: dict[bytes, Kind] = {b"1": "link", b"2": "link", b"3": "special", b"4": "special", b"6": "special"}
REFUSED = {
    "link": "links (tar makes files of them with --dereference --hard-dereference)",
    "sparse": "files stored with holes (tar --sparse)",
    "special": "devices and pipes",
}
PASSED_OVER = b"gVD"  # a comment for all members, the name of a volume, the list of a folder


class BrokenTar(ValueError):
    """An archive that cannot be read any further."""


class Member(NamedTuple):
    """A member of an archive.

    Args:
        name: its path in the archive.
        kind: what it is; only a `file` has its bytes there, as they are.
        offset: the place in the file of its first byte.
        size: how many bytes it has.
    """

    name: str
    kind: Kind
    offset: int
    size: int


def read_at(file: BinaryIO, size: int, offset: int) -> bytes:
    """Bytes from a place of an unbuffered file, fewer where it ends; several processes may share the file.

    Example:
        >>> with open(__file__, "rb", buffering=0) as file:
        ...     read_at(file, 11, 3)
        b'The members'
    """
    parts = []
    while size > 0:
        if hasattr(os, "pread"):
            part = os.pread(file.fileno(), size, offset)
        else:  # Windows
            file.seek(offset)
            part = file.read(size)
        if not part:
            break
        parts.append(part)
        size, offset = size - len(part), offset + len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


class Window:
    """A file that is read a little ahead.

    Args:
        file: the file, unbuffered.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file, self._start, self._seen = file, 0, b""

    def at(self, offset: int, size: int) -> bytes:
        """Bytes from a place, fewer where the file ends."""
        if not self._start <= offset <= offset + size <= self._start + len(self._seen):
            self._start, self._seen = offset, read_at(self.file, max(size, AHEAD), offset)
        return self._seen[offset - self._start : offset - self._start + size]


def walk_tar(window: Window, name: str, start: int = 0, end: int | None = None) -> Iterator[Member]:
    """All members of an archive in order, folders and links too.

    Args:
        window: the file that the archive is in.
        name: what messages call it.
        start: where it begins in the file.
        end: where it ends; by default with the file.

    Raises:
        BrokenTar: where it is compressed, cut off, damaged, or goes on behind its end.
    """
    end = os.fstat(window.file.fileno()).st_size if end is None else end
    place = start
    extended: dict[str, str] = {}  # of the member that follows
    while True:
        header = window.at(place, BLOCK)
        if place == start:
            _refuse_compressed(header, name)
        if place + BLOCK > end:
            raise BrokenTar(f"{name} is cut off: it ends at byte {end - start:,} without its end mark")
        if header == ZEROS:
            break
        _check_header(header, name, place - start)
        kind, size, place = header[156:157], _number(header[124:136], name, place - start), place + BLOCK
        if kind in (b"L", b"K", b"x", b"X"):
            if size > MOST_OF_A_NAME:
                raise BrokenTar(f"{name}: a name of {size:,} bytes at byte {place - start:,}")
            content = _content(window, place, size, end, name, start)
            if kind == b"L":
                extended["path"] = _text(content.rstrip(b"\0"))
            elif kind != b"K":
                extended |= _pax_fields(content, name, place - start)
        elif kind not in PASSED_OVER:
            member = _member(header, extended, place, size, name)
            extended, size = {}, 0 if member.kind in ("folder", "link", "special") else member.size
            if member.kind == "sparse" and kind == b"S":
                place = _behind_sparse_map(window, header, place)
            if place + size > end:
                raise BrokenTar(
                    f"{name} is cut off within {member.name}, which should go to byte {place + size - start:,}: "
                    f"there are {end - start:,}"
                )
            yield member
        place += -(-size // BLOCK) * BLOCK
    _check_end(window, place, end, name, start)


def _refuse_compressed(header: bytes, name: str) -> None:
    for magic, form in COMPRESSED.items():
        if header.startswith(magic):
            raise BrokenTar(f"{name} is compressed ({form}): pictures are read in place, so unpack it to a plain .tar")


def _check_header(header: bytes, name: str, place: int) -> None:
    told = header[148:156].split(b"\0")[0].strip()
    if told.isdigit() and int(told, 8) == sum(header) - sum(header[148:156]) + 8 * ord(" "):
        return
    raise BrokenTar(f"{name} is no tar archive" if place == 0 else f"{name}: the header at byte {place:,} is damaged")


def _number(field: bytes, name: str, place: int) -> int:
    """A number in octal digits, or where they do not hold it in the bits behind a first one that is set."""
    try:
        if field[0] == 0x80:
            return int.from_bytes(field[1:], "big")
        return int(field.split(b"\0")[0].strip() or b"0", 8)
    except ValueError:
        raise BrokenTar(f"{name}: the header at byte {place:,} is damaged: no size") from None


def _text(content: bytes) -> str:
    return content.decode("utf-8", "surrogateescape")


def _content(window: Window, place: int, size: int, end: int, name: str, start: int) -> bytes:
    if place + size > end:
        raise BrokenTar(f"{name} is cut off: it ends at byte {end - start:,} within a name")
    return window.at(place, size)


def _pax_fields(content: bytes, name: str, place: int) -> dict[str, str]:
    """Fields of an extended header: lines such as `27 path=train/n0144/1.jpg`, that begin with their length."""
    fields, rest = {}, content
    while rest.strip(b"\0"):
        length, _, _ = rest.partition(b" ")
        if not length.isdigit() or not len(length) < 8 or not len(length) + 2 < int(length) <= len(rest):
            raise BrokenTar(f"{name}: the extended header at byte {place:,} is damaged")
        key, _, value = rest[len(length) + 1 : int(length) - 1].partition(b"=")
        fields[_text(key)] = _text(value)
        rest = rest[int(length) :]
    return fields


def _member(header: bytes, extended: dict[str, str], place: int, size: int, archive: str) -> Member:
    short = header[:100].split(b"\0")[0]
    if header[257:263] == b"ustar\0" and header[345]:
        short = header[345:500].split(b"\0")[0] + b"/" + short
    name, flag = extended.get("path", _text(short)), header[156:157]
    if "size" in extended:
        if not (extended["size"].isdecimal() and len(extended["size"]) < 20):
            raise BrokenTar(f"{archive}: {name} has no size but {extended['size'][:40]!r}")
        size = int(extended["size"])
    if any(field.startswith("GNU.sparse.") for field in extended) or flag == b"S":
        return Member(extended.get("GNU.sparse.name", name), "sparse", place, size)
    if flag == b"5" or (flag in b"0\0" and name.endswith("/")):
        return Member(name, "folder", place, size)
    return Member(name, KINDS.get(flag, "file"), place, size)


def _behind_sparse_map(window: Window, header: bytes, place: int) -> int:
    """Where the bytes of a member with holes begin: behind blocks that list the holes."""
    more = header[482]
    while more:
        block = window.at(place, BLOCK)
        place, more = place + BLOCK, len(block) == BLOCK and block[504]
    return place


def _check_end(window: Window, place: int, end: int, name: str, start: int) -> None:
    """An archive ends with zeros; other bytes behind them are a second archive, which tar would not read either."""
    while place < end:
        rest = read_at(window.file, min(end - place, 2**20), place)
        if not rest or rest.strip(b"\0"):
            raise BrokenTar(
                f"{name} goes on behind its end mark at byte {place - start:,}: are these archives joined into one?"
            )
        place += len(rest)


def refusal_of(member: Member) -> str | None:
    """What is wrong with a member that is no plain file of the archive; None for one that is, and for folders.

    Example:
        >>> refusal_of(Member("train/1.jpg", "file", 512, 9)), refusal_of(Member("../1.jpg", "file", 512, 9))
        (None, 'names that lead out of the archive')
    """
    parts = member.name.split("/")
    if parts[0] == "" or ".." in parts:
        return "names that lead out of the archive"
    return REFUSED.get(member.kind)
