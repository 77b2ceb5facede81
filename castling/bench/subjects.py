"""A network to be measured that is not just a name of timm's: that of a run or of a recipe, whatever its task."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from castling.models.input_size import at_size
from castling.recipes import recipe_names
from castling.training.recipe import Recipe, load_recipe
from castling.training.run_folder import RunFolder
from castling.training.saved import FULL_BLEND
from castling.training.schedules import set_blend_to


def is_subject(name: str) -> bool:
    """Whether this names a run, its castled folder, or a recipe.

    Example:
        >>> is_subject("digits/castling"), is_subject("castling_deit_tiny_patch16_224")
        (True, False)
    """
    return RunFolder(name).is_run() or name in recipe_names() or Path(name).is_file()


def recipe_of(name: str) -> Recipe:
    """The recipe of a run, or that of this name."""
    run = RunFolder(name)
    return run.recipe() if run.is_run() else load_recipe(name)


def build_subject(name: str, size: tuple[int, int] | None = None) -> tuple[nn.Module, Tensor]:
    """The network with new weights, which take as long as trained ones, and an empty input.

    Args:
        name: a run, its castled folder, or a recipe whose data is there.
        size: height and width of the input; those of the recipe by default.

    Returns:
        The network in evaluation mode, with its branches, and an input `(1, C, H, W)`.

    Raises:
        ValueError: if this is no run and no recipe.
        FileNotFoundError: if a recipe's data is not there.
    """
    run = RunFolder(name)
    task = run.task() if run.is_run() else recipe_of(name).make_task()
    network = task.build_network().eval()
    set_blend_to(network, FULL_BLEND, 1.0)  # a converted one as it will be
    example = task.deployment().example
    if size is None:
        return network, example
    return at_size(network, size), example.new_zeros(*example.shape[:2], *size)
