"""Any source of labelled pictures as WebDataset's shards: tar archives of `KEY.jpg` and `KEY.cls`, and `classes.txt`.

Files go in byte by byte as they are; pictures from arrays become PNG. The folder appears when all of it is written.
"""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from castling.tasks.picture_sources import LabelledSource
from castling.tasks.shards.labels import PICTURES
from castling.tasks.shards.opening import CLASSES

SMALLEST = 2**14  # bytes of a shard: less is a mistake in its unit
USUAL_ENDINGS = {"jpeg": "jpg", "tiff": "tif"}  # as other readers of shards look for them


@dataclass(frozen=True)
class PackOptions:
    """How pictures are packed.

    Args:
        shard_size: bytes after which a new shard begins; a shard holds one picture at least.
        shuffle: the seed of the order; None keeps that of the source.
        on_picture: a function that is told how many pictures are written, and of how many.

    Raises:
        ValueError: for shards that are too small.
    """

    shard_size: int = 256 * 2**20
    shuffle: int | None = None
    on_picture: Callable[[int, int], None] = lambda done, total: None

    def __post_init__(self) -> None:
        if self.shard_size < SMALLEST:
            raise ValueError(f"a shard has at least {SMALLEST:,} bytes; got {self.shard_size:,}")
        if self.shuffle is not None and self.shuffle < 0:
            raise ValueError(f"the seed of shuffling must be at least 0; got {self.shuffle}")


@dataclass
class Packed:
    """What was written of a split.

    Args:
        num_pictures: how many pictures.
        num_bytes: bytes of all shards.
        shards: names of the shards.
        without_label: names of pictures that had no label, and have none in the shard.
    """

    num_pictures: int = 0
    num_bytes: int = 0
    shards: list[str] = field(default_factory=list)
    without_label: list[str] = field(default_factory=list)


def pack_sources(
    sources: Mapping[str, LabelledSource], out: Path, options: PackOptions | None = None
) -> dict[str, Packed]:
    """Write splits as shards into a new folder.

    Args:
        sources: the splits by name, which count the same classes.
        out: the folder; it must not be there, or be empty.
        options: how they are packed.

    Raises:
        ValueError: if there is something at the place, or names of classes that no list of lines can hold.
        OSError: if a picture cannot be read or the disk is full; then nothing is left behind.
    """
    options = options or PackOptions()
    labels = next(iter(sources.values())).labels
    wrong = [label for label in labels if label != label.strip() or len(label.splitlines()) != 1]
    if wrong:
        raise ValueError(f"{CLASSES} has a line for each class, which cannot hold {wrong[0]!r}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} is there already; choose another --out")
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = out.with_name(f".{out.name}.part")
    try:
        beside.mkdir()
    except FileExistsError:
        raise ValueError(f"{beside} is of a packing that still goes on, or was killed: then remove it") from None
    found = {split: Packed() for split in sources}
    total = sum(len(source) for source in sources.values())

    def tell() -> None:
        options.on_picture(sum(packed.num_pictures for packed in found.values()), total)

    try:
        for split, source in sources.items():
            _pack_split(source, split, beside, options, found[split], tell)
        _write_text(beside / CLASSES, "".join(f"{label}\n" for label in labels))
        if out.exists():
            out.rmdir()
        os.replace(beside, out)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    return found


def _pack_split(
    source: LabelledSource, split: str, folder: Path, options: PackOptions, packed: Packed, tell: Callable[[], None]
) -> None:
    order = np.arange(len(source))
    if options.shuffle is not None:
        order = np.random.default_rng([options.shuffle, *split.encode()]).permutation(len(source))
    examples = _examples(source, order, packed)
    example = next(examples, None)
    while example is not None:
        packed.shards.append(f"{split}-{len(packed.shards):06d}.tar")
        path, keys = folder / packed.shards[-1], set[str]()
        with path.open("wb") as file, tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
            while example is not None and (not keys or _size_with(tar, example) <= options.shard_size):
                key = _new_key(example.key, keys)
                _add(tar, f"{key}.{example.ending}", example.content)
                if example.label >= 0:
                    _add(tar, f"{key}.cls", str(example.label).encode())
                packed.num_pictures += 1
                tell()
                example = next(examples, None)
            tar.close()
            file.flush()
            os.fsync(file.fileno())
        packed.num_bytes += path.stat().st_size


@dataclass(frozen=True)
class _Example:
    key: str
    ending: str
    content: bytes
    label: int


def _examples(source: LabelledSource, order: np.ndarray, packed: Packed) -> Iterator[_Example]:
    for index in order:
        name, label = source.name(int(index)), source.target(int(index))
        content = source.stored(int(index))
        if content is None:
            buffer = io.BytesIO()
            source.read(int(index))[0].save(buffer, "PNG")
            content = buffer.getvalue()
        if label < 0:
            packed.without_label.append(name)
        yield _Example(_key_of(name), _ending_of(name, content), content, label)


def _key_of(name: str) -> str:
    """The key of a picture: its name without the first folder, which is the split or shard, and without dots."""
    folder, slash, file = name.partition("/")[2].rpartition("/")
    stem, _, ending = file.rpartition(".")
    if ending.lower() not in PICTURES:
        stem = file
    return folder + slash + stem.replace(".", "_")


def _ending_of(name: str, content: bytes) -> str:
    """The ending of a picture's name, or of its format where the name has none."""
    ending = name.rpartition(".")[2].lower()
    if ending not in PICTURES:
        with Image.open(io.BytesIO(content)) as picture:
            ending = str(picture.format).lower()
    if ending not in PICTURES:
        raise ValueError(f"{name} is a picture of the format {ending!r}, which has no ending in shards")
    return USUAL_ENDINGS.get(ending, ending)


def _new_key(key: str, taken: set[str]) -> str:
    """A key that its shard does not have yet: `a.jpg` beside `a.png` becomes `a-2.jpg`."""
    number, found = 2, key
    while found in taken:
        number, found = number + 1, f"{key}-{number}"
    taken.add(found)
    return found


def _size_with(tar: tarfile.TarFile, example: _Example) -> int:
    """The size that a shard will have with one more example, its end included."""
    blocks = sum(1 + -(-size // tarfile.BLOCKSIZE) for size in (len(example.content), 1))
    return tar.offset + tarfile.BLOCKSIZE * blocks + tarfile.RECORDSIZE


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)  # with no time and no owner: the same pictures are the same shard
    info.size, info.mode = len(content), 0o644
    tar.addfile(info, io.BytesIO(content))


def _write_text(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
