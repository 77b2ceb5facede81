"""Graphs of torch.export as `.pt2` files: written, opened, and looked into."""

from __future__ import annotations

import zipfile
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor

from castling.export.capture import Captured
from castling.export.exported import ExportedFile
from castling.export.metadata import KEY, Metadata
from castling.measure.quadratic import quadratic_tensors


def write_torch_export(captured: Captured, path: Path, metadata: Metadata) -> None:
    """Write a `.pt2` file."""
    torch.export.save(captured.program, path, extra_files={KEY: metadata.to_json()})


def open_torch_export(path: Path) -> ExportedFile:
    """Open a `.pt2` file; it runs in torch."""
    module = torch.export.load(path).module()
    operators = Counter(
        str(node.target) for node in module.graph.nodes if isinstance(node.target, torch._ops.OpOverload)
    )

    def run(images: Tensor) -> Tensor:
        with torch.inference_mode():
            output: Tensor = module(images)
            return output

    def quadratic(images: Tensor, num_tokens: int) -> list[str]:
        with torch.no_grad():
            return quadratic_tensors(lambda: module(images), num_tokens)

    native = sum(count for name, count in operators.items() if name.startswith("aten."))
    return ExportedFile(run, operators, native, quadratic)


def read_torch_export_metadata(path: Path) -> str:
    """The metadata of a `.pt2` file as text, empty where there is none; the graph itself takes longer to read."""
    with zipfile.ZipFile(path) as archive:
        return next((archive.read(name).decode() for name in archive.namelist() if name.endswith(f"/{KEY}")), "")
