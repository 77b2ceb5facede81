"""Graphs of torch.export as `.pt2` files: written, opened, and looked into."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator, OpOverload

from castling.exporting.capture import Captured
from castling.exporting.exported import ExportedFile, RunningOperator
from castling.exporting.metadata import KEY, Metadata
from castling.measure.quadratic import quadratic_tensors
from castling.measure.trees import Tree
from castling.sentences import one_line

NATIVE = ("aten", "prims")  # torch's own namespaces
MOST_METADATA = 2**24  # bytes; a packed file could say that there are very many
ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, LookupError, EOFError, struct.error)


def write_torch_export(captured: Captured, path: Path, metadata: Metadata) -> None:
    """Write a `.pt2` file; its outputs are the network's own tree, and their names stand in the metadata."""
    torch.export.save(captured.program, path, extra_files={KEY: metadata.to_json()})


def open_torch_export(path: Path) -> ExportedFile:
    """Open a `.pt2` file; it runs in torch.

    Torch unpickles parts of such a file, which makes it a program: open none of somebody you do not trust. Its metadata
    are read without that.

    Native are torch's own operators, those that take graphs among them; not native is what another library registered,
    and must be imported wherever the file is used. Arithmetic of sizes is no operator.
    """
    module = torch.export.load(path).module()
    targets = [node.target for node in module.graph.nodes if isinstance(node.target, (OpOverload, HigherOrderOperator))]
    running = [
        RunningOperator(str(target), isinstance(target, HigherOrderOperator) or target.namespace in NATIVE)
        for target in targets
    ]

    def run(images: Tensor) -> Tree:
        with torch.inference_mode():
            return module(images)

    def quadratic(images: Tensor, num_tokens: int) -> list[str]:
        with torch.no_grad():
            return quadratic_tensors(lambda: module(images), num_tokens)

    return ExportedFile(run, Counter(map(str, targets)), lambda images: running, quadratic)


def read_torch_export_metadata(path: Path) -> str:
    """The metadata of a `.pt2` file as text, empty where there is none; the graph itself takes longer to read."""
    try:
        with zipfile.ZipFile(path) as archive:
            part = next((part for part in archive.infolist() if part.filename.endswith(f"/{KEY}")), None)
            if part is None:
                return ""
            if part.file_size > MOST_METADATA:
                raise ValueError(f"its metadata take {part.file_size:,} bytes; at most {MOST_METADATA:,} are read")
            return archive.read(part).decode()
    except (*ZIP_ERRORS, ValueError) as error:
        raise ValueError(f"{path} is no file of torch.export, or damaged: {one_line(error)}") from error
