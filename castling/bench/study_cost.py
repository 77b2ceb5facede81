"""What a study would cost, told without its data: steps, and multiply-accumulates of its training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from castling.bench.study import Study
from castling.measure.macs import count_macs
from castling.measure.shapes import shapes_only
from castling.training.recipe import Recipe

CLASSES = 10  # a head's size hardly counts
PASSES = 3  # forward; gradients by activations and by weights take as much each


Count = Callable[[Recipe], int]


@dataclass(frozen=True)
class Forecast:
    """What one run would cost.

    Args:
        steps: its optimizer steps; None where the study does not say how many pictures its data has.
        macs: multiply-accumulates of all its training steps; None likewise.
    """

    steps: int | None
    macs: int | None


def forecast(study: Study, variant: str, count: Count | None = None) -> Forecast:
    """The cost of a run of a variant, evaluations left out.

    Args:
        study: the study.
        variant: the variant.
        count: counts the MACs of one picture; by default exactly.
    """
    recipe = study.recipes[variant]
    training = recipe.training
    if study.pictures is None and training.max_steps is None:
        return Forecast(None, None)
    epochs = [training.epochs * (study.pictures // training.batch_size)] if study.pictures else []
    steps = min([*epochs, *([training.max_steps] if training.max_steps else [])])
    return Forecast(steps, PASSES * (count or macs_of_picture)(recipe) * training.batch_size * steps)


def macs_of_picture(recipe: Recipe) -> int:
    """Multiply-accumulates of one picture on its way through the network, as it is trained."""
    task = recipe.make_task({"labels": [str(number) for number in range(CLASSES)], "category_ids": [*range(CLASSES)]})
    with shapes_only():
        network, (inputs, *_) = task.build_network(), task.training_inputs()
    return count_macs(network, *(one.to("meta") for one in inputs)).total


def roughly() -> Count:
    """Counts MACs once for all networks of a size: their kernels hardly differ, and each takes a moment to count."""
    known: dict[str, int] = {}

    def count(recipe: Recipe) -> int:
        model, size = recipe.settings.model, recipe.settings.data.image_size
        place = repr((recipe.task, model.name, model.options, size))
        if place not in known:
            known[place] = macs_of_picture(recipe)
        return known[place]

    return count
