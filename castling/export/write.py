"""Networks into files: castled, folded, captured once, written, verified, and only then put in place."""

from __future__ import annotations

import copy
import os
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from castling.attention import HeadMixer, branches
from castling.conversion.converted import check_blend_done
from castling.conversion.folding import optimize
from castling.conversion.switch import is_castled
from castling.export.capture import capture
from castling.export.formats import format_of
from castling.export.metadata import Metadata, describe
from castling.export.verify import Verification, example_inputs, verify


def export(
    model: nn.Module,
    path: Path | str,
    example: Tensor,
    dynamic: bool = True,
    metadata: Metadata | None = None,
    with_branch: bool = False,
    tolerance: float = 1e-4,
) -> Verification:
    """Write a network into a file that engines read.

    The file is written beside its place and comes there once it is verified; a file of an earlier call stays until
    then.

    Args:
        model: castled, or a network that never had a branch; left as it is.
        path: of the file; its ending is the format: `.onnx`, `.xml` (OpenVINO) or `.pt2` (torch.export). Folders are
            made.
        example: an input `(B, C, H, W)`, whose shape is the file's where axes are not free.
        dynamic: leave batch, height and width free, where the network can.
        metadata: what the file says about itself; by default what timm knows about the network.
        with_branch: write a network that was not castled, with its branch.
        tolerance: largest difference to PyTorch's outputs.

    Raises:
        ExportFailed: if the file does not do what the network does; then there is none.
        ValueError: for another ending, or a network that was not castled.

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
    path.parent.mkdir(parents=True, exist_ok=True)
    captured = capture(copy.deepcopy(model) if branches(model) else optimize(model), example, dynamic)
    metadata = replace(
        metadata or describe(model, example),
        dynamic=captured.dynamic,
        side_step=captured.side_step,
        castled=is_castled(model) if any(isinstance(module, HeadMixer) for module in model.modules()) else None,
    )
    beside = path.with_name(f".{path.stem}.part{path.suffix}")
    try:
        form.write(captured, beside, metadata)
        inputs = example_inputs(example, captured.dynamic, captured.side_step)
        verification = verify(beside, model, inputs, tolerance)
        for suffix in reversed(form.suffixes):  # the one to open comes last
            os.replace(beside.with_suffix(suffix), path.with_suffix(suffix))
    finally:
        for suffix in form.suffixes:
            beside.with_suffix(suffix).unlink(missing_ok=True)
    return replace(verification, path=path)


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
