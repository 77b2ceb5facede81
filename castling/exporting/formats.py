"""The formats, by name and by the ending of their files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from torch import Tensor

from castling.config import check_choice
from castling.exporting.capture import Captured
from castling.exporting.exported import ExportedFile
from castling.exporting.metadata import Metadata, parse_metadata
from castling.exporting.onnx import open_onnx, read_onnx_metadata, write_onnx
from castling.exporting.openvino import open_openvino, read_openvino_metadata, write_openvino
from castling.exporting.torch_export import open_torch_export, read_torch_export_metadata, write_torch_export
from castling.measure.trees import Tree

FormatName = Literal["onnx", "openvino", "torch_export"]


@dataclass(frozen=True)
class Format:
    """A kind of file.

    Args:
        suffixes: the endings of its files; the first is that of the file to open.
        write: a function that writes a captured network into a file.
        open: a function that opens a file.
        read_metadata: a function that reads what a file says about itself, as text.
    """

    suffixes: tuple[str, ...]
    write: Callable[[Captured, Path, Metadata], None]
    open: Callable[[Path], ExportedFile]
    read_metadata: Callable[[Path], str]


FORMATS: dict[FormatName, Format] = {
    "onnx": Format((".onnx",), write_onnx, open_onnx, read_onnx_metadata),
    "openvino": Format((".xml", ".bin"), write_openvino, open_openvino, read_openvino_metadata),
    "torch_export": Format((".pt2",), write_torch_export, open_torch_export, read_torch_export_metadata),
}


def format_of(path: Path | str) -> Format:
    """The format of a file, by its ending.

    Raises:
        ValueError: for another ending; names those that there are.

    Example:
        >>> format_of("model.onx")
        Traceback (most recent call last):
        ValueError: unknown kind of file 'model.onx': did you mean '.onnx'? Legal: '.onnx', '.xml', '.pt2'
    """
    by_suffix = {form.suffixes[0]: form for form in FORMATS.values()}
    check_choice("kind of file", Path(path).suffix, by_suffix, str(path))
    return by_suffix[Path(path).suffix]


def open_export(path: Path | str) -> ExportedFile:
    """Open a file that was exported. What it says about itself is held: images of another shape are refused.

    Raises:
        ValueError: if there is no such file, or it has the ending of no format.
    """
    form = _existing(path)
    opened, text = form.open(Path(path)), form.read_metadata(Path(path))
    if not text:
        return opened
    metadata = parse_metadata(text)

    def run(images: Tensor) -> Tree:
        metadata.check_images(images.shape)
        return opened.run(images)

    return replace(opened, run=run)


def read_metadata(path: Path | str) -> Metadata:
    """What an exported file says about itself: how to make its input, and what its outputs are.

    Raises:
        ValueError: if there is no such file, it has the ending of no format, is damaged, or says nothing.
    """
    text = _existing(path).read_metadata(Path(path))
    if not text:
        raise ValueError(f"{path} was not exported by castling: it has no metadata")
    try:
        return parse_metadata(text)
    except ValueError as error:
        raise ValueError(f"the metadata of {path} are damaged: {error}") from error


def _existing(path: Path | str) -> Format:
    form = format_of(path)
    if not Path(path).is_file():
        raise ValueError(f"there is no file {path}")
    return form
