"""The verbs as calls of the package itself: `castling.train`, `castling.open`, `castling.export`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from castling.exporting import Verification, open_export, read_metadata
from castling.exporting import export as write_export
from castling.exporting.exported import Runner
from castling.exporting.metadata import Metadata
from castling.measure.trees import Tree, leaves, like
from castling.sentences import shown
from castling.training import Recipe, RunFolder, load_recipe, parse_recipe
from castling.training import train as train_recipe
from castling.training.saved import SavedModel, Which, open_model
from castling.workflows.exporting import Size, find_subject


def train(
    recipe: str | Path | Mapping[str, Any] | Recipe, folder: Path | str | None = None, overrides: Iterable[str] = ()
) -> SavedModel:
    """Train a recipe, or go on with a run; returns the network, ready to predict.

    Args:
        recipe: the name or file of a recipe, its values, or the folder of a run to go on with.
        folder: the folder of a new run.
        overrides: `key=value`, for a recipe by name or file.

    Raises:
        ValueError: for a recipe or setting that there is not, a folder that holds a run already, or a missing one.

    Example:
        >>> import castling
        >>> model = castling.train("digits/castling", "runs/digits", ["training.epochs=5"])  # doctest: +SKIP
        >>> model.predict("scan.png")[0].labels[0]  # doctest: +SKIP
    """
    resume = isinstance(recipe, (str, Path)) and RunFolder(recipe).is_run()
    if resume:
        if folder is not None or list(overrides):
            raise ValueError("a run goes on as it began: give neither a folder nor settings with it")
        folder, made = Path(str(recipe)), RunFolder(str(recipe)).recipe()
    elif folder is None:
        raise ValueError("a new run needs a folder")
    elif isinstance(recipe, (str, Path)):
        made = load_recipe(recipe, overrides)
    else:
        made = recipe if isinstance(recipe, Recipe) else parse_recipe(recipe)
    train_recipe(made, Path(folder), resume)
    return open_model(folder)


def open(path: Path | str, checkpoint: Which | None = None) -> SavedModel:
    """Open whatever can look at pictures: a run, its castled folder, or a file that was exported from one.

    Args:
        path: the folder or file.
        checkpoint: the last one of a run, which is the default, or the best.

    Returns:
        The network with its task; its `predict` takes paths, folders, bytes, PIL images, arrays and tensors, one or
        several.

    Raises:
        ValueError: if there is none of these, it is damaged, or a file gives something other than predictions.

    Example:
        >>> import castling
        >>> castling.open("runs/digits/castled/model.onnx").predict("scan.png")  # doctest: +SKIP
    """
    if not Path(path).is_file():
        return open_model(path, checkpoint)
    if checkpoint is not None:
        raise ValueError(f"a file has no checkpoints; got checkpoint {checkpoint!r}")
    metadata = read_metadata(path)
    if not metadata.run:
        raise ValueError(
            f"{path} gives {', '.join(metadata.outputs)} and no predictions: it is not of a run, or is finished "
            "otherwise. castling.exporting.open_export runs it"
        )
    _check_imported(metadata.run["recipe"].get("task"), path)
    recipe = parse_recipe(metadata.run["recipe"])
    height, width = metadata.image_size
    if height == width != recipe.settings.data.image_size:
        recipe = replace(recipe, settings=_at_size(recipe.settings, height))
    task = recipe.make_task(metadata.run["facts"])
    return SavedModel(FileNetwork(open_export(path).run, metadata).eval(), recipe, task)


def export(
    model: nn.Module | Path | str,
    path: Path | str,
    example: Tensor | None = None,
    size: Size | None = None,
    dynamic: bool = True,
    with_branch: bool = False,
    finished: bool = False,
) -> Verification:
    """Write a network into a file that engines read, verified against PyTorch, or not at all.

    Args:
        model: a network, or a run folder, its castled folder, or the name of a model.
        path: the file; its ending is the format: `.onnx`, `.xml` (OpenVINO) or `.pt2` (torch.export).
        example: an input `(B, C, H, W)`, of a network.
        size: height and width that a run or name is exported for; its own where None.
        dynamic: whether batch, height and width are left free, where the network can.
        with_branch: whether a network that was not castled is written, with its branch.
        finished: whether what is done to outputs before they are used is in the file, of a run.

    Raises:
        ExportFailed: if the file does not do what the network does; then there is none.
        ValueError: for another ending, a network that was not castled, or one without an example.
    """
    if isinstance(model, nn.Module):
        if example is None:
            raise ValueError("a network needs an example: an input (B, C, H, W)")
        return write_export(model, path, example, dynamic, with_branch=with_branch)
    if example is not None:
        raise ValueError("an example is for a network; a run or a name knows its own, of another size by size")
    subject = find_subject(str(model), size, with_branch=with_branch, finished=finished)
    return write_export(
        subject.network, path, subject.example, dynamic, subject.metadata, with_branch, subject.tolerance
    )


class FileNetwork(nn.Module):
    """An exported file in a network's place.

    Args:
        run: the file, in its engine.
        metadata: what it says about itself.
    """

    def __init__(self, run: Runner, metadata: Metadata) -> None:
        super().__init__()
        self.run, self.metadata = run, metadata

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tree:
        """Outputs of the file; of one that takes a fixed number of images, of as many calls as they need.

        Raises:
            ValueError: for images of a size that the file does not take.
        """
        if "batch" in self.metadata.dynamic:
            return self.run(images)
        fixed = self.metadata.batch
        missing = -len(images) % fixed
        whole = torch.cat([images, images[-1:].expand(missing, -1, -1, -1)])
        parts = [self.run(part) for part in whole.split(fixed)]
        joined = [torch.cat(several)[: len(images)] for several in zip(*map(leaves, parts), strict=True)]
        return like(parts[0], joined)


def _check_imported(task: object, path: Path | str) -> None:
    """Refuse a task of one's own whose module a file would have imported: files come from anybody, code does not."""
    module, colon, _ = str(task).partition(":")
    if colon and module not in sys.modules:
        raise ValueError(f"{path} needs the task {shown(task)}: import {module} first, if it is yours")


def _at_size(settings: Any, side: int) -> Any:
    return replace(settings, data=replace(settings.data, image_size=side))
