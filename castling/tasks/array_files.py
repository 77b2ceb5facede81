"""Datasets of small pictures that come as a few binary files: MNIST's idx files, and CIFAR in its three forms.

They are read whole and checked when opened, so that a damaged or mismatched file is named before training starts.
"""

from __future__ import annotations

import gzip
import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from castling.measure.plain_json import parse_json
from castling.sentences import one_line, shown
from castling.tasks.byte_pickles import read_byte_pickle
from castling.tasks.pictures import open_picture_file

CIFAR10_LABELS = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
FASHION_LABELS = [
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"
]  # fmt: skip
CIFAR_FOLDERS = ["cifar-10-batches-py", "cifar-10-batches-bin", "cifar-100-python"]
GZIP_MAGIC = b"\x1f\x8b"
RATIO, SMALL = 100, 2**26  # packed files may hold so many times their bytes, or so many bytes


@dataclass
class ArraySource:
    """Labelled pictures held in memory.

    Args:
        pictures: uint8, `(N, H, W)` for grey or `(N, H, W, 3)` for RGB.
        targets: the class of each, `(N,)`.
        labels: class names.
        split: what the pictures' names begin with.
    """

    pictures: np.ndarray
    targets: np.ndarray
    labels: list[str]
    split: str

    def __len__(self) -> int:
        return len(self.targets)

    def name(self, index: int) -> str:
        """Split and number of a picture."""
        return f"{self.split}/{index}"

    def read(self, index: int) -> tuple[Image.Image, int]:
        """A picture, in mode L or RGB, and its class."""
        return Image.fromarray(self.pictures[index]), self.target(index)

    def target(self, index: int) -> int:
        """The class of a picture."""
        return int(self.targets[index])

    def stored(self, index: int) -> None:
        """There is no file of a single picture."""
        return None


def read_idx(root: Path, split: str) -> ArraySource:
    """Read files in MNIST's format, plain or gzipped; `val` is what they call t10k.

    The labels are the lines of `labels.txt` if there is one, Fashion-MNIST's if "fashion" is in the folder's path,
    and otherwise numbers.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: names the file that is damaged or does not go with the others.

    Example:
        >>> import tempfile
        >>> root = Path(tempfile.mkdtemp())
        >>> one = bytes([0, 0, 0, 1])  # a picture of one pixel, of class 2
        >>> _ = (root / "t10k-images-idx3-ubyte").write_bytes(bytes([0, 0, 8, 3]) + 3 * one + bytes([255]))
        >>> _ = (root / "t10k-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1]) + one + bytes([2]))
        >>> read_idx(root, "val").labels
        ['0', '1', '2']
    """
    prefix = {"train": "train", "val": "t10k"}[split]
    pictures = _parse_idx(_idx_path(root, f"{prefix}-images-idx3-ubyte"), num_dims=3)
    targets_path = _idx_path(root, f"{prefix}-labels-idx1-ubyte")
    targets = _parse_idx(targets_path, num_dims=1)
    return _array_source(pictures, targets, _idx_labels(root), split, targets_path)


def read_cifar(root: Path, split: str) -> ArraySource:
    """Read CIFAR-10 from its binary files, its pickles or PNG sheets, or CIFAR-100 (fine labels) from its pickles.

    Raises:
        FileNotFoundError: if there is none of these in the folder, or a part is missing.
        ValueError: names the file that is damaged, does not go with the others, or holds more than arrays of bytes.

    Example:
        >>> import tempfile
        >>> root = Path(tempfile.mkdtemp())
        >>> _ = (root / "test_batch.bin").write_bytes(bytes([3] + 3072 * [0]))
        >>> cifar = read_cifar(root, "val")
        >>> cifar.labels[cifar.read(0)[1]]
        'cat'
    """
    stems = ["test_batch"] if split == "val" else [f"data_batch_{number}" for number in range(1, 6)]
    for folder in [root, *(root / name for name in CIFAR_FOLDERS)]:
        if paths := _all_or_none([folder / f"{stem}.bin" for stem in stems]):
            batches = [_read_records(path) for path in paths]
        elif paths := _all_or_none([folder / stem for stem in stems]):
            batches = [_read_pickle(path) for path in paths]
        elif paths := _all_or_none([folder / f"{stem}.png" for stem in stems]):
            batches = _read_sheets(paths, split)
        elif paths := _all_or_none([folder / ("test" if split == "val" else "train")]):
            batches = [_read_pickle(path) for path in paths]
        else:
            continue
        pictures, targets = (np.concatenate(parts) for parts in zip(*batches, strict=True))
        return _array_source(pictures, targets, _cifar_labels(folder), split, folder)
    raise FileNotFoundError(f"no CIFAR in {root}: expected {stems[0]}.bin, {stems[0]} or {stems[0]}.png there")


@contextmanager
def _blaming(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # what decodes a damaged file raises nearly anything, and seldom says which file
        raise ValueError(f"{path}: {one_line(error)}") from error


def _array_source(
    pictures: np.ndarray, targets: np.ndarray, labels: list[str], split: str, origin: Path
) -> ArraySource:
    if len(pictures) != len(targets):
        raise ValueError(f"{origin}: {len(targets)} labels for {len(pictures)} pictures")
    if not pictures.size:
        raise ValueError(f"{origin}: no pictures")
    if targets.min() < 0 or targets.max() >= len(labels):
        raise ValueError(f"{origin}: labels from {targets.min()} to {targets.max()}, but {len(labels)} class names")
    return ArraySource(pictures, targets, list(labels), split)


def _idx_path(root: Path, name: str) -> Path:
    for path in (root / name, root / f"{name}.gz"):
        if path.is_file():
            return path
    raise FileNotFoundError(f"neither {name} nor {name}.gz in {root}")


def _parse_idx(path: Path, num_dims: int) -> np.ndarray:
    data = path.read_bytes()
    if data.startswith(GZIP_MAGIC):  # by content: browsers unpack what they download and keep the name
        with _blaming(path):
            data = _unpacked(data)
    magic, start = bytes([0, 0, 8, num_dims]), 4 + 4 * num_dims  # 8 stands for unsigned bytes
    if not data.startswith(magic):
        raise ValueError(f"{path}: magic number {data[:4].hex()!r} is not {magic.hex()!r}")
    shape = [int.from_bytes(data[offset : offset + 4], "big") for offset in range(4, start, 4)]
    if len(data) != start + math.prod(shape):
        raise ValueError(f"{path}: {len(data)} bytes, but its header tells of {start + math.prod(shape)}")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def _unpacked(data: bytes) -> bytes:
    most = max(SMALL, RATIO * len(data))
    with gzip.open(io.BytesIO(data)) as file:
        unpacked = file.read(most + 1)
    if len(unpacked) > most:
        raise ValueError(f"{len(data)} bytes hold more than {most} packed ones, which is more than pictures do")
    return unpacked


def _idx_labels(root: Path) -> list[str]:
    if (root / "labels.txt").is_file():
        return _lines(root / "labels.txt")
    if "fashion" in str(root.absolute()).lower():
        return FASHION_LABELS
    # Of both splits, so that both count the same classes.
    names = [f"{prefix}-labels-idx1-ubyte{suffix}" for prefix in ("train", "t10k") for suffix in ("", ".gz")]
    largest = [int(_parse_idx(root / name, 1).max(initial=0)) for name in names if (root / name).is_file()]
    return [str(number) for number in range(1 + max(largest))]


def _lines(path: Path) -> list[str]:
    with _blaming(path):
        return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def _all_or_none(paths: list[Path]) -> list[Path]:
    missing = [path.name for path in paths if not path.is_file()]
    if missing and len(missing) < len(paths):
        raise FileNotFoundError(f"CIFAR in {paths[0].parent} is not complete: {', '.join(missing)} missing")
    return [] if missing else paths


def _channels_last(rows: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))  # (N, 3072) -> (N, 32, 32, 3)


def _read_records(path: Path) -> tuple[np.ndarray, np.ndarray]:
    data = np.fromfile(path, np.uint8)
    if data.size % 3073:
        raise ValueError(f"{path}: {data.size} bytes are not a whole number of records of 1 + 3072 bytes")
    records = data.reshape(-1, 3073)
    return _channels_last(records[:, 1:]), records[:, 0]


def _read_pickle(path: Path) -> tuple[np.ndarray, np.ndarray]:
    batch = _unpickle(path)
    data = batch.get("data")
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (3072,):
        raise ValueError(f"{path}: no CIFAR batch: 'data' must be an N x 3072 array of bytes")
    return _channels_last(data), _whole_numbers(batch.get("fine_labels", batch.get("labels")), path, len(data))


def _read_sheets(paths: Sequence[Path], split: str) -> list[tuple[np.ndarray, np.ndarray]]:
    sheets = []
    for path in paths:
        with _blaming(path), open_picture_file(path) as sheet:
            pixels = np.asarray(sheet.convert("RGB"))
        if pixels.shape[1] != 1024:
            raise ValueError(f"{path}: {pixels.shape[1]} pixels wide, but a row of 1024 is a 32 x 32 picture")
        sheets.append(pixels.reshape(-1, 32, 32, 3))
    # The published sheets come with labels that are spelled this way.
    prefix = "test" if split == "val" else "train"
    names = [f"{prefix}_lables.json", f"{prefix}_labels.json"]
    found = [path for path in map(paths[0].with_name, names) if path.is_file()]
    if not found:
        raise FileNotFoundError(f"neither {names[0]} nor {names[1]} in {paths[0].parent}")
    values = parse_json(found[0].read_bytes(), found[0])
    targets = _whole_numbers(values, found[0], sum(map(len, sheets)))
    return list(zip(sheets, np.split(targets, np.cumsum([len(sheet) for sheet in sheets])[:-1]), strict=True))


def _whole_numbers(values: object, path: Path, count: int) -> np.ndarray:
    if not isinstance(values, list) or not all(type(value) is int and abs(value) < 2**63 for value in values):
        raise ValueError(f"{path}: the labels must be a list of whole numbers")
    if len(values) != count:
        raise ValueError(f"{path}: {len(values)} labels for {count} pictures")
    return np.array(values, np.int64)


def _cifar_labels(folder: Path) -> list[str]:
    if (folder / "batches.meta.txt").is_file():
        return _lines(folder / "batches.meta.txt")
    for name, key in (("batches.meta", "label_names"), ("meta", "fine_label_names")):
        if (folder / name).is_file():
            names = _unpickle(folder / name).get(key)
            if not isinstance(names, list):
                raise ValueError(f"{folder / name}: no list {key!r} in it")
            with _blaming(folder / name):
                return [_text(label) for label in names]
    return CIFAR10_LABELS


def _text(value: Any) -> str:
    if not isinstance(value, (str, bytes)):
        raise ValueError(f"expected a name; got {shown(value)}")
    return value.decode() if isinstance(value, bytes) else value


def _unpickle(path: Path) -> dict[str, Any]:
    with _blaming(path):
        content = read_byte_pickle(path.read_bytes())
        if not isinstance(content, dict):
            raise ValueError(f"holds a {type(content).__name__}, not a dictionary")
        return {_text(key): value for key, value in content.items()}
