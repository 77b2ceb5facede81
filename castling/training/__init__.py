"""Training: one loop that knows no task, recipes, run folders and checkpoints that survive."""

from castling.training.loop import TrainingFailed, train
from castling.training.recipe import Recipe, load_recipe, parse_recipe
from castling.training.run_folder import RunFolder
from castling.training.signals import Interrupted

__all__ = ["Interrupted", "Recipe", "RunFolder", "TrainingFailed", "load_recipe", "parse_recipe", "train"]
