"""Linearisation: a trained softmax network learns to work with castling attention, in stages, each a run of its own.

`attention` lets every attention match the original's by itself; `features` moves the whole network over while its
blocks keep the original's features; `finetune` trains the task itself. Each stage starts with the weights of the one
before, and all of them know the original. The first two look at no label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from accelerate import PartialState

from castling.attention import ThresholdSchedule
from castling.config import AttentionConfig, check_choice
from castling.conversion import BlendSchedule
from castling.settings import with_overrides
from castling.tasks import find_task
from castling.tasks.huggingface import is_huggingface
from castling.tasks.networks import ConvertConfig
from castling.training.config import TrainingConfig
from castling.training.recipe import Recipe, parse_recipe, recipe_values
from castling.training.run_folder import RunFolder
from castling.training.saved import open_model, save_weights

StageName = Literal["attention", "features", "finetune"]
STAGES: tuple[StageName, ...] = get_args(StageName)
ORIGINAL, RESULT = "original.safetensors", "converted.safetensors"
Train = Callable[[Recipe, Path, bool], Any]


@dataclass(frozen=True)
class Linearization:
    """How a network is linearised.

    Args:
        stages: names in `STAGES`, in their order.
        epochs: the number for each stage.
        rate: the peak learning rate; the original's recipe decides where None.
        only: attentions to convert, or patterns; None for all.
        attention: castling attention. With an auxiliary branch, its threshold closes in the last stage.
        follow: whether the stage `finetune` follows the original's outputs too.
        train_sizes: picture sizes of the last stage, of which each step has one; the first is that of its
            evaluation. That of the original where there are none.

    Raises:
        ValueError: for unknown or unordered stages, or epochs that do not fit them.
    """

    stages: tuple[StageName, ...] = STAGES
    epochs: tuple[int, ...] = (1, 1, 1)
    rate: float | None = None
    only: tuple[str, ...] | None = None
    attention: AttentionConfig = AttentionConfig(aux=False)  # noqa: RUF009 - frozen
    follow: bool = True
    train_sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for stage in self.stages:
            check_choice("stage", stage, STAGES)
        if not self.stages or list(self.stages) != [stage for stage in STAGES if stage in self.stages]:
            raise ValueError(f"stages must be some of {', '.join(STAGES)}, in this order; got {', '.join(self.stages)}")
        if self.stages == ("attention",):
            raise ValueError("the stage attention trains no network as a whole: add features or finetune")
        if len(self.epochs) != len(self.stages) or min(self.epochs) < 1:
            raise ValueError(f"epochs must be {len(self.stages)} numbers of at least 1, one a stage; got {self.epochs}")


def stage_recipes(base: Recipe, folder: Path, settings: Linearization, overrides: Iterable[str] = ()) -> list[Recipe]:
    """The recipe of each stage.

    Args:
        base: the recipe of the original, with its data and its network.
        folder: the folder of the whole, with the original's weights; a stage has a folder of its name in it.
        settings: stages and what differs.
        overrides: `key=value`, for all stages.

    Raises:
        ValueError: for a wrong key or value.
    """
    recipes, before = [], None
    weights = None if is_huggingface(base.settings.model.name) else str(folder / ORIGINAL)
    for stage, epochs in zip(settings.stages, settings.epochs, strict=True):
        last = stage == settings.stages[-1]
        sizes = settings.train_sizes if last else ()
        size = sizes[0] if sizes else None
        convert = ConvertConfig(
            attention=settings.attention,
            only=None if settings.only is None else list(settings.only),
            start=None if before is None else str(folder / before / RESULT),
        )
        model = replace(base.settings.model, weights=weights, convert=convert, input_size=size)
        data = base.settings.data
        if size is not None:
            data = replace(data, image_size=size)
        if len(sizes) > 1:
            if not hasattr(data, "sizes"):
                raise ValueError(f"{base.task} is trained at one picture size; got {', '.join(map(str, sizes))}")
            data = replace(data, sizes=sizes)
        moves = stage != "attention" and before in (None, "attention")
        training = _training(base.training, epochs, settings, moves, last)
        sections = replace(base.settings, model=model, data=data)
        if stage == "finetune" and settings.follow:
            sections = find_task(base.task).following_original(sections)
        imitate = None if stage == "finetune" else stage
        recipe = replace(base, settings=sections, training=training, imitate=imitate)
        recipes.append(parse_recipe(with_overrides(recipe_values(recipe), overrides)))
        before = stage
    return recipes


def _training(base: TrainingConfig, epochs: int, settings: Linearization, moves: bool, last: bool) -> TrainingConfig:
    """How a stage is trained; the first that runs the whole network `moves` it over, early.

    So most of its steps are for what it becomes. A branch closes in the last stage, which then gets used to it.
    """
    rate = base.learning_rate
    blend = BlendSchedule("linear", until=0.1) if moves else BlendSchedule("fixed", start=1.0)
    closes = settings.attention.aux and last
    start = settings.attention.threshold
    return replace(
        base,
        epochs=epochs,
        max_steps=None,
        blend=blend,
        threshold=ThresholdSchedule("linear", start, 1.0, since=0.3, until=0.8) if closes else None,
        learning_rate=replace(
            rate, peak=settings.rate or rate.peak, warmup_epochs=min(rate.warmup_epochs, epochs / 10)
        ),
    )


def check_same(recipes: Sequence[Recipe], stages: Sequence[StageName], folder: Path) -> None:
    """Refuse to go on with a conversion that began with other settings.

    Raises:
        ValueError: names the stage.
    """
    for recipe, stage in zip(recipes, stages, strict=True):
        run = RunFolder(folder / stage)
        if run.is_run() and run.recipe() != recipe:
            raise ValueError(f"{run.path} was begun with other settings; name another --out, or call it as before")


def linearize(recipes: Sequence[Recipe], stages: Sequence[StageName], folder: Path, train_stage: Train) -> Path:
    """Train the stages that are not finished yet, in one process or in several.

    Args:
        recipes: what `stage_recipes` gives.
        stages: their names.
        folder: the folder of the whole, with the original's weights.
        train_stage: trains a recipe in a folder; its third argument says whether to go on with what is there.

    Returns:
        The run folder of the last stage.
    """
    processes = PartialState(cpu=not torch.accelerator.is_available())
    for recipe, stage in zip(recipes, stages, strict=True):
        place = folder / stage
        done, resume = (place / RESULT).is_file(), RunFolder(place).is_run()
        processes.wait_for_everyone()  # before one of them begins the run that the others look for
        if not done:
            train_stage(recipe, place, resume)
            if processes.is_main_process:
                save_weights(open_model(place).network, place / RESULT)
        processes.wait_for_everyone()
    return place
