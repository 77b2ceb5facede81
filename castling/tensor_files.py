"""Tensors out of files that anybody may have written: no code in them is run, and they take no more than they are.

safetensors is a header and numbers. What `torch.save` wrote is a pickle in an archive, of which torch reads plain
values and tensors alone; the archive must not be packed, as torch writes none, for little could become very much.
"""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from castling.sentences import one_line, shown

# What torch raises where such a file is damaged.
TORCH_ERRORS = (
    *(RuntimeError, pickle.UnpicklingError, EOFError, LookupError, TypeError, ValueError, AttributeError),
    *(AssertionError, OverflowError, MemoryError, struct.error),
)
RATIO, SMALL = 100, 2**26  # tensors may take so many times the bytes of their file, or so many bytes


def parse_safetensors(content: bytes, name: object) -> dict[str, Tensor]:
    """The tensors of a safetensors file.

    Args:
        content: the bytes of the file.
        name: what the file is called in messages.

    Raises:
        ValueError: if it is none.
    """
    try:
        return load(content)
    except (SafetensorError, LookupError, RuntimeError, ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{name} holds no tensors: {one_line(error)}") from error


def parse_torch(content: bytes, name: object) -> Any:
    """What `torch.save` wrote, tensors and plain values alone.

    Args:
        content: the bytes of the file.
        name: what the file is called in messages.

    Raises:
        ValueError: if it is damaged, packed, or holds anything else.
    """
    refuse_packed(io.BytesIO(content), name)
    try:
        values = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except TORCH_ERRORS as error:
        raise ValueError(f"{name} holds no tensors: {one_line(error)}") from error
    refuse_swollen(values, len(content), name)
    return values


def refuse_packed(file: Path | BinaryIO, name: object) -> None:
    """Refuse an archive whose parts are packed; other files pass.

    Raises:
        ValueError: names the first part.
    """
    try:
        if not zipfile.is_zipfile(file):
            return
        with zipfile.ZipFile(file) as archive:
            parts = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError, LookupError) as error:
        raise ValueError(f"{name} is a damaged archive: {one_line(error)}") from error
    packed = next((part for part in parts if part.compress_type != zipfile.ZIP_STORED), None)
    if packed is not None:
        raise ValueError(f"{name} is an archive whose part {shown(packed.filename)} is packed, which torch never does")


def refuse_swollen(values: object, size: int, name: object) -> None:
    """Refuse tensors that are much more than their file: one number may stand for all of a tensor.

    They take no room as they are, and all that they say as soon as one computes with them.

    Args:
        values: what the file held: mappings and sequences of whatever is in them.
        size: the bytes of the file.
        name: what the file is called in messages.

    Raises:
        ValueError: if they are.

    Example:
        >>> refuse_swollen({"weight": torch.zeros(1).expand(2**40)}, 1000, "a.pth")
        Traceback (most recent call last):
        ValueError: a.pth holds no tensors: its 1,000 bytes stand for 4,398,046,511,104 of them
    """
    bytes_in_all = sum(tensor.numel() * tensor.element_size() for tensor in _tensors_in(values))
    if bytes_in_all > max(SMALL, RATIO * size):
        raise ValueError(f"{name} holds no tensors: its {size:,} bytes stand for {bytes_in_all:,} of them")


def _tensors_in(values: object) -> Iterator[Tensor]:
    """All tensors, each once; containers may hold themselves, and be nested as deeply as they like."""
    left, seen = [values], set()
    while left:
        value = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, Mapping):
            left.extend(value.values())
        elif isinstance(value, (list, tuple)):
            left.extend(value)
