"""The network that is to be converted: of a run, a recipe with weights, timm's by name, or a folder of transformers'.

The last two need pictures alone, without labels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
from safetensors.torch import save

from castling.config import check_choice
from castling.recipes import recipe_names
from castling.tasks.huggingface import is_huggingface, read_huggingface, read_preprocessing
from castling.tasks.networks import read_weights
from castling.training.recipe import Recipe, load_recipe, parse_recipe
from castling.training.run_folder import RunFolder, write_file
from castling.training.saved import Which, open_model, save_weights

GENTLE = {  # short alignments of trained weights
    "epochs": 1,
    "batch_size": 32,
    "optimizer": {"name": "adamw", "weight_decay": 0.0},
    "learning_rate": {"kind": "cosine", "peak": 5e-4, "warmup_epochs": 0.1},
    "clip_norm": 1.0,
    "log_every": 10,
}


@dataclass(frozen=True)
class Original:
    """A network before it is converted.

    Args:
        recipe: the recipe with its data and its network.
        write_weights: writes its weights into a file; None where they are in the folder that its name is.
        labelled: whether its pictures have labels, so that it can be fine-tuned on its task.
    """

    recipe: Recipe
    write_weights: Callable[[Path], object] | None
    labelled: bool


def find_original(
    name: str, weights: Path | None = None, checkpoint: Which | None = None, data: str | None = None
) -> Original:
    """Find the network that is to be converted.

    Args:
        name: a run folder, a recipe by name or file, a model of timm's, or a folder that transformers wrote.
        weights: its weights; those of a run and of a folder of transformers' are in there.
        checkpoint: which of a run's.
        data: the folder of the pictures; by default what a run or recipe says.

    Raises:
        ValueError: if there is no such network, no weights, or no pictures.
    """
    folder = Path(name)
    if weights is not None and not weights.is_file():
        raise ValueError(f"there is no file {weights}")
    if is_huggingface(name):
        _refuse(weights, "--weights", "a folder of transformers' has its own")
        return Original(_unlabelled(name, None, data), None, labelled=False)
    if folder.is_dir() and not timm.is_model(name):
        _refuse(weights, "--weights", "a run has its own")
        if not RunFolder(folder).is_run():
            raise ValueError(f"{folder} is neither a run folder nor a folder that transformers wrote")
        saved = open_model(folder, checkpoint)
        _refuse_ours(saved.recipe)
        return Original(saved.recipe, lambda path: save_weights(saved.network, path), labelled=True)
    if checkpoint is not None:
        raise ValueError("--checkpoint is for a run")
    if timm.is_model(name):
        if weights is None:
            raise ValueError(f"{name} needs its trained weights: give --weights FILE")
        recipe = _unlabelled(name, str(weights), data)
    elif folder.is_file() or name in recipe_names():
        if weights is None:
            raise ValueError(f"there is no run folder {name}; with a recipe, give the original's --weights")
        recipe = load_recipe(name)
        _refuse_ours(recipe)
    else:
        names = [*recipe_names(), *timm.list_models(f"{name[:4]}*")]
        check_choice("run folder, recipe, model or folder of transformers'", name, names)
    found = read_weights(str(weights), "--weights")
    return Original(recipe, lambda path: write_file(path, save(found)), labelled=not timm.is_model(name))


def _unlabelled(name: str, weights: str | None, data: str | None) -> Recipe:
    """The recipe of a network without a task: pictures prepared as its makers say."""
    if data is None:
        raise ValueError(f"{name} comes without pictures: give --data DIR")
    return parse_recipe(
        {
            "task": "embedding",
            "model": {"name": name, "weights": weights, "convert": {}},
            "data": {"root": data, **_preparation(name)},
            "training": GENTLE,
        }
    )


def _preparation(name: str) -> dict[str, Any]:
    if is_huggingface(name):
        known = read_huggingface(name)
        size = known.get("image_size", 224)
        side = size if isinstance(size, int) else size[0]
        return {"image_size": side, "channels": known.get("num_channels", 3), "crop_share": 1.0} | read_preprocessing(
            name
        )
    known = timm.get_pretrained_cfg(name)
    return {
        "image_size": known.input_size[-1],
        "channels": known.input_size[0],
        "mean": list(known.mean),
        "std": list(known.std),
        "crop_share": known.crop_pct,
        "interpolation": known.interpolation,
    }


def _refuse_ours(recipe: Recipe) -> None:
    """Refuse networks of ours, before anything is written."""
    model = recipe.settings.model
    if model.name.startswith("castling_"):
        what = "the softmax twin of a Castling model" if model.kernel == "softmax" else "a Castling model already"
        raise ValueError(
            f"{model.name} is {what}, and nothing is to be converted: model.kernel and model.attention choose its "
            "attention. Train it so, from these weights: castling train RECIPE model.weights=FILE; then castle it"
        )


def _refuse(value: object, flag: str, why: str) -> None:
    if value is not None:
        raise ValueError(f"{flag} is not for this: {why}; got {value}")
