"""What a study would cost, told without its data: steps, and multiply-accumulates of its training."""

from __future__ import annotations

from dataclasses import dataclass

from castling.bench.study import Study
from castling.measure.macs import count_macs
from castling.measure.shapes import shapes_only
from castling.training.recipe import Recipe

CLASSES = 10  # a head's size hardly counts
PASSES = 3  # forward; gradients by activations and by weights take as much each


@dataclass(frozen=True)
class Forecast:
    """What one run would cost.

    Args:
        steps: its optimizer steps; None where the study does not say how many pictures its data has.
        macs: multiply-accumulates of all its training steps; None likewise.
    """

    steps: int | None
    macs: int | None


def forecast(study: Study, variant: str) -> Forecast:
    """The cost of a run of a variant, evaluations left out.

    Args:
        study: the study.
        variant: the variant.
    """
    recipe = study.run_recipe(variant, study.seeds[0])
    training = recipe.training
    if study.pictures is None and training.max_steps is None:
        return Forecast(None, None)
    epochs = [training.epochs * (study.pictures // training.batch_size)] if study.pictures else []
    steps = min([*epochs, *([training.max_steps] if training.max_steps else [])])
    return Forecast(steps, PASSES * macs_of_picture(recipe) * training.batch_size * steps)


def macs_of_picture(recipe: Recipe) -> int:
    """Multiply-accumulates of one picture on its way through the network, as it is trained."""
    task = recipe.make_task({"labels": [str(number) for number in range(CLASSES)], "category_ids": [*range(CLASSES)]})
    with shapes_only():
        network, inputs = task.build_network(), task.training_inputs()
    return count_macs(network, *(one.to("meta") for one in inputs)).total
