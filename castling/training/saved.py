"""Models on disk: that of a run, from one of its checkpoints, and the castled one that `castling castle` wrote."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from safetensors.torch import load_file, save
from torch import nn

from castling.config import check_choice
from castling.conversion import BlendSchedule, castle
from castling.tasks import TASKS
from castling.training.checkpoint import load_best, load_last
from castling.training.recipe import Recipe
from castling.training.run_folder import RunFolder, write_file
from castling.training.schedules import set_blend_to, set_threshold

Which = Literal["last", "best"]
FULL_BLEND = BlendSchedule(kind="fixed", start=1.0)
WEIGHTS, CERTIFICATE = "model.safetensors", "certificate.json"


@dataclass
class SavedModel:
    """A trained model with what belongs to it.

    Args:
        model: in evaluation mode; with its branches, unless it was saved castled.
        recipe: it was trained by.
        labels: names of its classes.
        step: of training; None for a castled model.
    """

    model: nn.Module
    recipe: Recipe
    labels: list[str]
    step: int | None = None


def open_model(folder: Path | str, which: Which = "last") -> SavedModel:
    """Open a run, or what `castling castle` made of it.

    Args:
        folder: a run folder, or its `castled` folder.
        which: the last checkpoint of a run or the best.

    Raises:
        ValueError: if there is no model in the folder, or its weights are damaged.
    """
    check_choice("checkpoint", which, get_args(Which))
    folder = Path(folder)
    recipe = RunFolder(folder).recipe()
    labels = json.loads((folder / "labels.json").read_text())
    model = TASKS[recipe.task].rebuild(recipe.settings, labels)
    if (folder / WEIGHTS).is_file():
        set_blend_to(model, FULL_BLEND, 1.0)
        model = castle(model, inplace=True)
        model.load_state_dict(load_file(folder / WEIGHTS))
        return SavedModel(model.eval(), recipe, labels)
    checkpoint = (load_last if which == "last" else load_best)(folder / "checkpoints")
    if checkpoint is None:
        raise ValueError(f"{folder} has no good checkpoint")
    model.load_state_dict(checkpoint.weights.get("ema", checkpoint.weights["model"]))
    set_threshold(model, recipe.training.threshold, checkpoint.state["share"])
    set_blend_to(model, recipe.training.blend, checkpoint.state["share"])
    return SavedModel(model.eval(), recipe, labels, checkpoint.step)


def occupancy_history(folder: Path | str) -> list[tuple[int, dict[str, list[float]]]]:
    """Occupancy per attention and head over the steps of a run, as its log has it."""
    lines = RunFolder(folder).log_lines()
    return [(line["step"], line["occupancy"]) for line in lines if line.get("occupancy")]


def write_castled(run: Path, saved: SavedModel, certificate: dict[str, Any]) -> Path:
    """Write the castled weights of a run with their certificate, recipe and labels; returns the folder."""
    folder = run / "castled"
    folder.mkdir(exist_ok=True)
    for name in ("config.yaml", "labels.json"):
        shutil.copyfile(run / name, folder / name)
    write_file(folder / CERTIFICATE, json.dumps(certificate, indent=2).encode())
    save_weights(saved.model, folder / WEIGHTS)
    return folder


def save_weights(model: nn.Module, path: Path) -> None:
    """Write the weights of a model as safetensors, whole or not at all."""
    write_file(path, save({name: value.contiguous() for name, value in model.state_dict().items()}))
