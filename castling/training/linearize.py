"""Linearisation: a trained softmax network learns to work with castling attention, in stages, each a run of its own.

`attention` lets every attention match the original's by itself; `features` moves the whole network over while its
blocks keep the original's features; `task` trains on the labels with the original as teacher. Each stage starts with
the weights of the one before, and all of them know the original.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

from torch import nn

from castling.config import check_choice
from castling.conversion import castle
from castling.conversion.converted import check_blend_done, converted_attentions
from castling.settings import read_yaml, with_overrides
from castling.training.recipe import Recipe, parse_recipe, recipe_text
from castling.training.run_folder import RunFolder
from castling.training.saved import SavedModel, open_model, save_weights

StageName = Literal["attention", "features", "task"]
STAGES: tuple[StageName, ...] = get_args(StageName)
ORIGINAL, RESULT = "original.safetensors", "converted.safetensors"
Train = Callable[[Recipe, Path, bool], Any]


@dataclass(frozen=True)
class Linearization:
    """How a network is linearised.

    Args:
        stages: names in `STAGES`, in their order.
        epochs: of each stage.
        rate: peak learning rate; the original's recipe decides where None.
        only: attentions to convert, or patterns; None for all.
        attention: settings of castling attention, as in a recipe.
        teacher: whether the `task` stage follows the original (`self`) or labels alone (`none`).

    Raises:
        ValueError: for unknown or unordered stages, or epochs that do not fit them.
    """

    stages: tuple[StageName, ...] = STAGES
    epochs: tuple[int, ...] = (1, 1, 1)
    rate: float | None = None
    only: tuple[str, ...] | None = None
    attention: Mapping[str, Any] | None = None
    teacher: Literal["self", "none"] = "self"

    def __post_init__(self) -> None:
        for stage in self.stages:
            check_choice("stage", stage, STAGES)
        if not self.stages or list(self.stages) != [stage for stage in STAGES if stage in self.stages]:
            raise ValueError(f"stages must be some of {', '.join(STAGES)}, in this order; got {', '.join(self.stages)}")
        if self.stages == ("attention",):
            raise ValueError("the stage attention trains no network as a whole: add features or task")
        if len(self.epochs) != len(self.stages) or min(self.epochs) < 1:
            raise ValueError(f"epochs must be {len(self.stages)} numbers of at least 1, one a stage; got {self.epochs}")


def stage_recipes(base: Recipe, folder: Path, settings: Linearization, overrides: Iterable[str] = ()) -> list[Recipe]:
    """The recipe of each stage.

    Args:
        base: of the original, with its data and its network.
        folder: of the whole, with the original's weights; a stage has a folder of its name in it.
        settings: stages and what differs.
        overrides: `key=value`, for all stages.

    Raises:
        ValueError: for a wrong key or value.
    """
    recipes, moved = [], False
    for place, (stage, epochs) in enumerate(zip(settings.stages, settings.epochs, strict=True)):
        values: dict[str, Any] = read_yaml(recipe_text(base), "the recipe of the original")
        values["model"]["weights"] = str(folder / ORIGINAL)
        before = folder / settings.stages[place - 1] / RESULT if place else None
        values["model"]["convert"] = {
            "only": None if settings.only is None else list(settings.only),
            "start": None if before is None else str(before),
            **({} if settings.attention is None else {"attention": dict(settings.attention)}),
        }
        values["objective"] = stage
        follows = stage == "task" and settings.teacher == "self"
        values["distillation"] = {"kind": "soft", "model": "self", "alpha": 0.5} if follows else None
        training = values["training"]
        training |= {"epochs": epochs, "threshold": None, "max_steps": None}
        # The first stage that runs the whole network moves it over, early: most of its steps are for what it becomes.
        training["blend"] = (
            {"kind": "fixed", "start": 1.0}
            if stage == "attention" or moved
            else {"kind": "linear", "start": 0.0, "end": 1.0, "until": 0.1}
        )
        moved = moved or stage != "attention"
        if settings.rate is not None:
            training["learning_rate"]["peak"] = settings.rate
        training["learning_rate"]["warmup_epochs"] = min(training["learning_rate"]["warmup_epochs"], epochs / 10)
        recipes.append(parse_recipe(with_overrides(values, overrides)))
    return recipes


def linearize(recipes: Sequence[Recipe], folder: Path, train_stage: Train) -> Path:
    """Train the stages that are not finished yet.

    Args:
        recipes: of `stage_recipes`.
        folder: of the whole, with the original's weights.
        train_stage: trains a recipe in a folder; its third argument says whether to go on with what is there.

    Returns:
        The run folder of the last stage.
    """
    for recipe in recipes:
        place = folder / recipe.settings.objective
        if not (place / RESULT).is_file():
            train_stage(recipe, place, RunFolder(place).is_run())
            save_weights(open_model(place).model, place / RESULT)
    return place


def compare(saved: SavedModel, sizes: Sequence[int] = (), batch_size: int = 64) -> dict[str, Any]:
    """Metrics of three networks on the validation pictures: the original, the converted one, the castled one.

    Args:
        saved: the last stage.
        sizes: sides of the pictures; by default that of training. Position embeddings are resampled.
        batch_size: pictures at a time.

    Returns:
        `attentions`, the number that castled; `sizes`, the metrics of the three by the size of the pictures.

    Raises:
        ValueError: if the converted network still holds some of the original's softmax.
    """
    check_blend_done(saved.model)
    settings, found = saved.recipe.settings, {}
    for size in sizes or [settings.data.image_size]:
        data = replace(settings.data, image_size=size)
        task = replace(saved.recipe, settings=replace(settings, data=data)).make_task()
        original = task.build_original()
        networks = {"original": original, "converted": saved.model, "castled": castle(saved.model)}
        found[size] = {
            name: task.evaluate(at_size(network, size).eval(), task.build_loader("val", batch_size))
            for name, network in networks.items()
        }
    return {"attentions": len(converted_attentions(saved.model)), "sizes": found}


def at_size(network: nn.Module, size: int) -> nn.Module:
    """A copy for pictures of another size, its position embeddings resampled where it has any of a fixed size."""
    network = copy.deepcopy(network)
    if hasattr(network, "set_input_size"):
        cast(Any, network).set_input_size(img_size=(size, size))
    return network
