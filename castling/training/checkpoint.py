"""Checkpoints that survive: written beside, flushed, checked by a manifest of checksums, renamed into place.

A checkpoint is a folder. Its manifest is written last and names the checksum of every file, so that a folder is either
whole or known not to be.
"""

from __future__ import annotations

import io
import logging
import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from castling.measure.plain_json import json_text, parse_json, read_object
from castling.plain_values import plain_value
from castling.sentences import one_line
from castling.tensor_files import parse_safetensors, parse_torch
from castling.training.manifest import MANIFEST, read_whole, write_manifest
from castling.training.run_folder import FACTS, sync_folder, write_file

logger = logging.getLogger(__name__)
STATE, OPTIMIZER = "state.json", "optimizer.pt"
KNOWN: dict[str, Any] = {  # types of what every run has in its state
    "step": int,
    "share": float,
    "score": float | None,
    "log_size": int,
    "progress": dict[str, Any],
    "scaler": dict[str, Any],
    "num_examples": tuple[int, int],
}


@dataclass
class Checkpoint:
    """All that a run needs to go on.

    Args:
        step: optimizer steps taken.
        weights: state dicts by name: `model`, and `ema` where there is one.
        optimizer: its state dict.
        state: everything else, as JSON holds it; `score` where the weights were evaluated.
    """

    step: int
    weights: Mapping[str, Mapping[str, Tensor]]
    optimizer: Mapping[str, Any]
    state: dict[str, Any]

    def noted(self, what: str, folder: Path) -> Any:
        """What its state says, such as the `share` of training that is done.

        Raises:
            ValueError: if it says nothing of the kind; names the folder of the run.
        """
        if what not in self.state:
            raise ValueError(f"{folder}: the {STATE} of its checkpoint at step {self.step} lacks {what!r}")
        return self.state[what]


def save_checkpoint(root: Path, checkpoint: Checkpoint, keep: int = 2) -> Path:
    """Write a checkpoint, then remove old ones: the last `keep` and the one with the best score stay.

    Returns:
        Its folder.

    Raises:
        OSError: if it cannot be written; then nothing has changed.
    """
    folder = root / f"step-{checkpoint.step:09d}"
    beside = root / f".{folder.name}.part"
    files = {f"{name}.safetensors": save(_clones(weights)) for name, weights in checkpoint.weights.items()}
    buffer = io.BytesIO()
    torch.save(checkpoint.optimizer, buffer)
    files[OPTIMIZER] = buffer.getvalue()
    files[STATE] = json_text({"step": checkpoint.step, **checkpoint.state}, indent=2).encode()
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()  # not its parents: where the run's disk is away, nothing is to lie under its mount point
        for name, content in files.items():
            write_file(beside / name, content)
        write_manifest(beside, files)
        if folder.exists():  # of the same step: a damaged one, or the same weights before their evaluation
            _remove(folder)
        os.replace(beside, folder)
        sync_folder(root)
    except OSError as error:
        shutil.rmtree(beside, ignore_errors=True)
        last = [path.name for path in checkpoint_folders(root)[-1:]]
        raise OSError(
            f"cannot save {folder}: {error.strerror or error}. "
            + (f"The last good checkpoint is {last[0]}" if last else "There is no checkpoint yet")
        ) from error
    _remove_old(root, folder, keep)
    return folder


def load_checkpoint(folder: Path) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        ValueError: if it is incomplete or damaged; says which file.
    """
    files = read_whole(folder)
    missing = [name for name in (STATE, OPTIMIZER, "model.safetensors") if name not in files]
    if missing:
        raise ValueError(f"{folder} is damaged: its {MANIFEST} does not name {missing[0]}")
    state = _parse_state(files.pop(STATE), folder / STATE)
    optimizer = parse_torch(files.pop(OPTIMIZER), folder / OPTIMIZER)
    weights = {
        name.removesuffix(".safetensors"): parse_safetensors(content, folder / name) for name, content in files.items()
    }
    return Checkpoint(state.pop("step"), weights, optimizer, state)


def _parse_state(content: bytes, path: Path) -> dict[str, Any]:
    """The state of a checkpoint, in which what every run has is of the right type."""
    state = plain_value(parse_json(content, path), dict[str, Any], str(path))
    if "step" not in state:
        raise ValueError(f"{path} does not say its step")
    return {key: plain_value(value, KNOWN.get(key, Any), f"{path}: {key}") for key, value in state.items()}


def load_last(root: Path) -> Checkpoint | None:
    """The last checkpoint that is whole; damaged ones are named in a warning and passed over. None if there is none.

    Raises:
        ValueError: if there are some, and all of them are damaged.
    """
    troubles: list[str] = []
    for folder in reversed(checkpoint_folders(root)):
        try:
            checkpoint = load_checkpoint(folder)
        except ValueError as error:
            troubles.append(str(error))
            continue
        for trouble in troubles:
            logger.warning("%s; the one before it is used", trouble)
        return checkpoint
    if troubles:
        raise ValueError(
            f"no checkpoint of {root.parent} is whole: {troubles[0]}. Copy one back, or remove {root} to begin anew"
        )
    return None


def load_best(root: Path) -> Checkpoint | None:
    """The checkpoint with the best score, or the last one where none was evaluated."""
    best = _best(checkpoint_folders(root))
    return load_last(root) if best is None else load_checkpoint(best)


def load_weights(network: nn.Module, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Load the weights of a run into the very network that its recipe and facts describe.

    Args:
        network: the network; some of its modules make room for what the weights have.
        weights: its state dict.
        folder: the folder of the run, for the message.

    Raises:
        ValueError: names the first weight that does not fit.
    """
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        wanted, there = (
            {name: tuple(value.shape) for name, value in tensors.items()} for tensors in (network.state_dict(), weights)
        )
        first = min(
            (name for name in wanted.keys() | there.keys() if wanted.get(name) != there.get(name)), default="none"
        )
        raise ValueError(
            f"{folder}: its weights are not those of the network that config.yaml and {FACTS} describe; first that "
            f"differs: {one_line(first)}, {there.get(first, 'none')} in the weights, {wanted.get(first, 'none')} in "
            "the network. Put these files back as training wrote them"
        ) from error


def checkpoint_folders(root: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted(path for path in root.glob("step-*") if path.is_dir())


def _best(folders: list[Path]) -> Path | None:
    scores = {folder: score for folder in folders if (score := _score(folder)) is not None}
    return max(scores, key=lambda folder: (scores[folder], folder.name), default=None)


def _score(folder: Path) -> float | None:
    try:
        score = plain_value(read_object(folder / STATE).get("score"), float | None, "score")
    except ValueError:  # a damaged one, which its reader will name
        return None
    return None if score is None or math.isnan(score) else float(score)


def _remove_old(root: Path, newest: Path, keep: int) -> None:
    found = checkpoint_folders(root)
    folders = found[: found.index(newest) + 1]
    for folder in found:
        # A later step than the newest is a damaged one that was passed over: it must not count as one to go back to.
        if folder not in folders[-keep:] and folder != _best(folders):
            _remove(folder)
    for unfinished in root.glob(".step-*.part"):  # of a process that was killed
        shutil.rmtree(unfinished, ignore_errors=True)


def _remove(folder: Path) -> None:
    """Remove a checkpoint: whoever is killed meanwhile leaves no half of one under its name."""
    aside = folder.with_name(f".{folder.name}.old.part")
    shutil.rmtree(aside, ignore_errors=True)
    os.replace(folder, aside)
    shutil.rmtree(aside, ignore_errors=True)


def _clones(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that share no memory, as safetensors wants them."""
    return {name: value.detach().to("cpu", copy=True).contiguous() for name, value in weights.items()}
