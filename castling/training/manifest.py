"""Checksums of the files in a folder, in a file that is written last: the folder is whole, or known not to be."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from castling.measure.plain_json import read_object
from castling.sentences import one_line, shown
from castling.training.run_folder import write_file

MANIFEST = "manifest.json"


def write_manifest(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the checksums of files, which are in the folder already."""
    checksums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    write_file(folder / MANIFEST, json.dumps(checksums, indent=2).encode())


def read_whole(folder: Path) -> dict[str, bytes]:
    """The files that a manifest names, each as it was written.

    Raises:
        ValueError: if the manifest or a file is missing or damaged; says which.
    """
    manifest = folder / MANIFEST
    if not manifest.is_file():
        raise ValueError(f"{folder} is incomplete: it has no {MANIFEST}")
    try:
        checksums = read_object(manifest)
        files = {name: _inside(folder, name).read_bytes() for name in checksums}
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder} is damaged: {one_line(error)}") from error
    for name, content in files.items():
        if hashlib.sha256(content).hexdigest() != checksums[name]:
            raise ValueError(f"{folder} is damaged: {name} does not match its checksum")
    return files


def _inside(folder: Path, name: str) -> Path:
    """A file of the folder itself: a manifest that somebody sent names no others, nor what never ends."""
    path = folder / name
    if Path(name).name != name or not path.is_file():
        raise ValueError(f"its {MANIFEST} names {shown(name)}, which is no file in it")
    return path
