"""Networks on disk: that of a run, from one of its checkpoints, and the castled one that `castling castle` wrote."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from safetensors.torch import save
from torch import nn

from castling.config import check_choice
from castling.conversion import BlendSchedule, castle
from castling.measure.occupancy import Occupancy
from castling.measure.plain_json import json_text
from castling.settings import from_mapping
from castling.tasks.task import Picture, Prediction, Task
from castling.tensor_files import parse_safetensors
from castling.training.checkpoint import load_best, load_last, load_weights
from castling.training.manifest import MANIFEST, read_whole, write_manifest
from castling.training.recipe import Recipe
from castling.training.run_folder import FACTS, NETWORK, RunFolder, write_file
from castling.training.schedules import set_blend_to, set_threshold

Which = Literal["last", "best"]
FULL_BLEND = BlendSchedule(kind="fixed", start=1.0)
WEIGHTS, CERTIFICATE, CASTLED = "model.safetensors", "certificate.json", "castled"
CASTLED_FILES = ("config.yaml", FACTS, NETWORK, CERTIFICATE, WEIGHTS)


@dataclass
class SavedModel:
    """A trained network with what belongs to it.

    Args:
        network: the network, in evaluation mode; with its branches, unless it was saved castled.
        recipe: the recipe of its training.
        task: the task, with the facts of its training.
        step: the steps of its training; None for a castled one.
    """

    network: nn.Module
    recipe: Recipe
    task: Task
    step: int | None = None

    def predict(self, pictures: Picture | Iterable[Picture], **options: Any) -> Sequence[Prediction]:
        """What the network sees in pictures.

        Args:
            pictures: one or several paths, folders, bytes, PIL images, arrays or tensors.
            **options: what the task lets one choose, such as `top` of a classifier.

        Raises:
            ValueError: for an option that the task does not have, or something that is no picture.
        """
        chosen: Any = from_mapping(self.task.PredictConfig, options)
        return self.task.predictor(self.network, chosen)(pictures)


def open_model(folder: Path | str, which: Which | None = None) -> SavedModel:
    """Open a run, or what `castling castle` made of it.

    Args:
        folder: a run folder, or its `castled` folder.
        which: the last checkpoint of a run, which is the default, or the best.

    Raises:
        ValueError: if there is no model in the folder, its weights are damaged, or a checkpoint is asked for where
            there is none to choose.
    """
    folder = Path(folder)
    run = RunFolder(folder)
    is_castled_folder = (folder / WEIGHTS).is_file() or (folder / MANIFEST).is_file()
    files = _castled_files(folder) if is_castled_folder else {}
    recipe = run.recipe()
    if which is not None:
        check_choice("checkpoint", which, get_args(Which))
        if is_castled_folder:
            raise ValueError(
                f"{folder} holds castled weights and no checkpoints; got checkpoint {which!r}. "
                f"Castle that one first: castling castle {shlex.quote(str(folder.parent))} --checkpoint {which}"
            )
    task = run.task(recipe)
    try:
        network = task.build_network()
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from error
    if is_castled_folder:
        set_blend_to(network, FULL_BLEND, 1.0)
        network = castle(network, inplace=True)
        load_weights(network, parse_safetensors(files[WEIGHTS], folder / WEIGHTS), folder)
        return SavedModel(network.eval(), recipe, task)
    checkpoint = (load_best if which == "best" else load_last)(run.checkpoints)
    if checkpoint is None:
        raise ValueError(f"{folder} has no good checkpoint")
    load_weights(network, checkpoint.weights.get("ema", checkpoint.weights["model"]), folder)
    share = checkpoint.noted("share", folder)
    try:
        set_threshold(network, recipe.training.threshold, share)
        set_blend_to(network, recipe.training.blend, share)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from error
    return SavedModel(network.eval(), recipe, task, checkpoint.step)


def occupancy_history(folder: Path | str) -> list[tuple[int, Occupancy]]:
    """Occupancy per attention and head over the steps of a run, as its log has it."""
    return [(record.step, record.occupancy) for record in RunFolder(folder).records() if record.occupancy]


def write_castled(run: Path, network: nn.Module, certificate: dict[str, Any]) -> Path:
    """Write castled weights beside their certificate, recipe and facts; returns the folder."""
    folder = run / CASTLED
    folder.mkdir(exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)  # incomplete until there is a new one
    for name in ("config.yaml", FACTS, NETWORK):
        shutil.copyfile(run / name, folder / name)
    write_file(folder / CERTIFICATE, json_text(certificate, indent=2).encode())
    save_weights(network, folder / WEIGHTS)
    write_manifest(folder, {name: (folder / name).read_bytes() for name in CASTLED_FILES})
    return folder


def _castled_files(folder: Path) -> dict[str, bytes]:
    """The files of a castled folder, whole."""
    remedy = f"copy it again, or castle again: castling castle {shlex.quote(str(folder.parent))}"
    try:
        files = read_whole(folder)
    except ValueError as error:
        raise ValueError(f"{error}; {remedy}") from error
    missing = [name for name in CASTLED_FILES if name not in files]
    if missing:
        raise ValueError(f"{folder} is damaged: its {MANIFEST} does not name {missing[0]}; {remedy}")
    return files


def save_weights(network: nn.Module, path: Path) -> None:
    """Write the weights of a network as safetensors, whole or not at all."""
    write_file(path, save({name: value.contiguous() for name, value in network.state_dict().items()}))
