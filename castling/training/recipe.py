"""Recipes: one YAML file says what to train and how; unknown keys and bad values fail before anything starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from castling.config import check_choice
from castling.recipes import find_recipe
from castling.settings import from_mapping, read_yaml, to_mapping, with_overrides
from castling.tasks import TASKS
from castling.training.config import TrainingConfig

COMMON = ("task", "seed", "training")


@dataclass(frozen=True)
class Recipe:
    """What to train and how.

    Args:
        task: a name in `castling.tasks.TASKS`.
        settings: the task's own sections, such as `model` and `data`.
        training: the loop's section.
        seed: of everything that is random.
    """

    task: str
    settings: Any
    training: TrainingConfig
    seed: int = 0

    def make_task(self, root: str | None = None) -> Any:
        """The task, with its data opened; from another place where `root` is given."""
        settings = self.settings
        if root is not None:
            if settings.data.root is None:
                raise ValueError(f"data.source {settings.data.source} is not read from a folder; got {root!r}")
            settings = replace(settings, data=replace(settings.data, root=root))
        return TASKS[self.task](settings)


def parse_recipe(values: Mapping[str, Any]) -> Recipe:
    """A recipe from a nested mapping.

    Raises:
        ValueError: for a wrong key or value; names its place and the nearest legal name.

    Example:
        >>> parse_recipe({"task": "classification", "model": {"name": "castling_levit_128"}}).seed
        0
        >>> parse_recipe({"task": "classification", "modle": {}})
        Traceback (most recent call last):
        ValueError: unknown key 'modle': did you mean 'model'? Legal: 'task', 'seed', 'training', 'model', 'data', \
'augment', 'smoothing', 'distillation', 'objective'
    """
    check_choice("task", values.get("task"), TASKS)
    kind = TASKS[values["task"]].Config
    for key in values:
        check_choice("key", key, [*COMMON, *kind.__dataclass_fields__])
    seed = values.get("seed", 0)
    if not isinstance(seed, int) or seed < 0:
        raise ValueError(f"seed must be a whole number of at least 0; got {seed!r}")
    return Recipe(
        task=values["task"],
        settings=from_mapping(kind, {key: value for key, value in values.items() if key not in COMMON}),
        training=from_mapping(TrainingConfig, values.get("training") or {}, "training"),
        seed=seed,
    )


def load_recipe(name: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """Read a recipe.

    Args:
        name: a file, or the name of a shipped recipe, such as `digits/castling`.
        overrides: `key=value` with dots between the keys.

    Raises:
        ValueError: if there is no such recipe, or for a wrong key or value.
    """
    path = find_recipe(name)
    return parse_recipe(with_overrides(read_yaml(path.read_text(), str(path)), overrides))


def recipe_text(recipe: Recipe) -> str:
    """The resolved recipe as YAML, every default written out; `load_recipe` reads it again."""
    values = {"task": recipe.task, "seed": recipe.seed, **to_mapping(recipe.settings)}
    return yaml.safe_dump({**values, "training": to_mapping(recipe.training)}, sort_keys=False)
