"""Networks into files: castled, folded, captured once, written, verified, and only then put in place."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from castling.attention import HeadMixer, branches
from castling.conversion.converted import check_blend_done
from castling.conversion.switch import is_castled
from castling.exporting.capture import capture, folded, reason
from castling.exporting.exported import ExportFailed
from castling.exporting.formats import format_of
from castling.exporting.metadata import Metadata, describe_network
from castling.exporting.outputs import names_in
from castling.exporting.verify import MIN_NATIVE, Verification, example_inputs, verify


def export(
    model: nn.Module,
    path: Path | str,
    example: Tensor,
    dynamic: bool = True,
    metadata: Metadata | None = None,
    with_branch: bool = False,
    tolerance: float = 1e-4,
    min_native: float = MIN_NATIVE,
) -> Verification:
    """Write a network into a file that engines read.

    The file is written beside its place and comes there once it is verified; a file of an earlier call stays until
    then.

    Args:
        model: a castled network, or one that never had a branch; left as it is.
        path: the file; its ending is the format: `.onnx`, `.xml` (OpenVINO) or `.pt2` (torch.export). Folders are
            made.
        example: an input `(B, C, H, W)`, whose shape is the file's where axes are not free.
        dynamic: whether batch, height and width are left free, where the network can.
        metadata: what the file says about itself; by default what timm knows about the network. Its names of outputs
            are the file's.
        with_branch: whether a network that was not castled is written, with its branch.
        tolerance: the largest legal difference to PyTorch's outputs.
        min_native: the smallest legal share of operators that the engine has code of its own for.

    Raises:
        ExportFailed: if the file cannot be made, or does not do what the network does; then there is none.
        ValueError: for another ending, a network that was not castled, or names that are not those of its outputs.
        OSError: for a place where no file can be written.

    Example:
        >>> import tempfile, timm, torch, castling
        >>> options = {"img_size": 16, "patch_size": 8, "embed_dim": 8, "depth": 1, "num_heads": 2, "num_classes": 2}
        >>> model = castling.castle(timm.create_model("castling_deit_tiny_patch16_224", **options))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     seen = export(model, f"{folder}/model.pt2", torch.zeros(1, 3, 16, 16))
        >>> seen.dynamic, seen.num_softmax, seen.quadratic
        (('batch', 'height', 'width'), 0, ())
    """
    form, path = format_of(path), Path(path)
    check_castled(model, with_branch)
    check_place(path)
    metadata = metadata or describe_network(model, example)
    captured = capture(folded(model), example, dynamic, metadata.outputs)
    metadata = replace(
        metadata,
        outputs=names_in(captured.form),
        form=captured.form,
        dynamic=captured.dynamic,
        side_step=captured.side_step,
        castled=is_castled(model) if any(isinstance(module, HeadMixer) for module in model.modules()) else None,
    )

    def write(beside: Path) -> Verification:
        try:
            form.write(captured, beside, metadata)
        except Exception as error:  # each exporter raises its own
            raise ExportFailed(f"{path} cannot be written: {reason(error)}") from error
        inputs = example_inputs(example, captured.dynamic, captured.side_step)
        return verify(beside, model, inputs, tolerance, min_native)

    return put_in_place(path, write)


def put_in_place(path: Path, write: Callable[[Path], Verification]) -> Verification:
    """Have a file written and verified beside its place, then put it there; where that fails there is no new file.

    Args:
        path: the file; its folder is made.
        write: a function that writes and verifies the file at the place that it is given.
    """
    suffixes = format_of(path).suffixes
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.stem}.part{path.suffix}")
    try:
        verification = write(beside)
        for suffix in reversed(suffixes):  # the one to open comes last
            os.replace(beside.with_suffix(suffix), path.with_suffix(suffix))
    finally:
        for suffix in suffixes:
            beside.with_suffix(suffix).unlink(missing_ok=True)
    return replace(verification, path=path)


def check_place(path: Path) -> None:
    """Refuse a place where no file can be written, before the work; its folder is made.

    Raises:
        OSError: names the file and the reason.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise OSError(f"{path} cannot be written: {error.strerror}") from error
    if path.is_dir():
        raise IsADirectoryError(f"{path} cannot be written: it is a folder")


def check_castled(model: nn.Module, with_branch: bool = False) -> None:
    """Refuse a network with branches, or with softmax of the network that it was, unless they are wanted.

    Raises:
        ValueError: says how many there are and what to do.
    """
    left = list(branches(model))
    if left and not with_branch:
        raise ValueError(
            f"{len(left)} auxiliary branches are left, such as that of {left[0]!r}: they make inference quadratic in "
            "the number of tokens. Castle the model first, or ask for a file with the branch"
        )
    if not left and not with_branch:
        check_blend_done(model)
