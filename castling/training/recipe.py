"""Recipes: one YAML file says what to train and how; unknown keys and bad values fail before anything starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

import yaml

from castling.config import check_choice
from castling.recipes import find_recipe
from castling.sentences import shown
from castling.settings import from_mapping, read_yaml, to_mapping, with_overrides
from castling.tasks import Task, find_task
from castling.tasks.imitation import ImitationName
from castling.tasks.task import Facts
from castling.training.config import TrainingConfig

COMMON = ("task", "seed", "imitate", "training")


@dataclass(frozen=True)
class Recipe:
    """What to train and how.

    Args:
        task: a name in `castling.tasks.TASKS`, or `package.module:Class`.
        settings: the task's own sections, such as `model` and `data`.
        training: the loop's section.
        seed: the seed of everything that is random.
        imitate: what a converted network learns from its original instead of the task: each `attention` by itself, or
            the `features` of all its blocks. Labels are not looked at.

    Raises:
        ValueError: for something to imitate where the network is not converted.
    """

    task: str
    settings: Any
    training: TrainingConfig
    seed: int = 0
    imitate: ImitationName | None = None

    def __post_init__(self) -> None:
        if self.imitate is not None and self.settings.model.convert is None:
            raise ValueError("only a converted network has an original to imitate: set model.convert")

    def make_task(self, facts: Facts | None = None) -> Task:
        """The task; with the facts of an earlier run it needs no data to build its network."""
        return find_task(self.task)(self.settings, facts)


def parse_recipe(values: Mapping[str, Any]) -> Recipe:
    """A recipe from a nested mapping.

    Raises:
        ValueError: for a wrong key or value; names its place and the nearest legal name.

    Example:
        >>> parse_recipe({"task": "classification", "model": {"name": "castling_levit_128"}}).seed
        0
        >>> parse_recipe({"task": "classification", "modle": {}})
        Traceback (most recent call last):
        ValueError: unknown key 'modle': did you mean 'model'? Legal: 'task', 'seed', 'imitate', 'training', 'model', \
'data', 'augment', 'smoothing', 'distillation'
    """
    kind = find_task(values.get("task")).Config
    for key in values:
        check_choice("key", key, [*COMMON, *(field.name for field in fields(kind))])
    seed, imitate = values.get("seed", 0), values.get("imitate")
    if not isinstance(seed, int) or seed < 0:
        raise ValueError(f"seed must be a whole number of at least 0; got {shown(seed)}")
    if imitate is not None:
        check_choice("imitate", imitate, get_args(ImitationName))
    return Recipe(
        task=values["task"],
        settings=from_mapping(kind, {key: value for key, value in values.items() if key not in COMMON}),
        training=from_mapping(TrainingConfig, values.get("training") or {}, "training"),
        seed=seed,
        imitate=imitate,
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
    return parse_recipe(with_overrides(read_yaml(path.read_bytes(), str(path)), overrides))


def recipe_text(recipe: Recipe) -> str:
    """The resolved recipe as YAML, every default written out; `load_recipe` reads it again."""
    return yaml.safe_dump(recipe_values(recipe), sort_keys=False)


def recipe_values(recipe: Recipe) -> dict[str, Any]:
    """The recipe as a nested mapping; `parse_recipe` makes the same recipe of it."""
    common = {"task": recipe.task, "seed": recipe.seed, "imitate": recipe.imitate}
    return {**common, **to_mapping(recipe.settings), "training": to_mapping(recipe.training)}


def first_difference(recipe: Recipe, other: Recipe) -> str | None:
    """The first setting in which two recipes differ; None if they are the same.

    Example:
        >>> model = {"name": "castling_levit_128"}
        >>> first, second = (parse_recipe({"task": "classification", "model": model, "seed": seed}) for seed in (0, 1))
        >>> first_difference(first, second)
        'seed is 0, and there 1'
    """
    return _first_difference(recipe_values(recipe), recipe_values(other), "")


def _first_difference(ours: Any, theirs: Any, place: str) -> str | None:
    if not (isinstance(ours, Mapping) and isinstance(theirs, Mapping)):
        return None if ours == theirs else f"{place} is {ours!r}, and there {theirs!r}"
    for key in {**ours, **theirs}:
        found = _first_difference(ours.get(key), theirs.get(key), f"{place}.{key}".lstrip("."))
        if found:
            return found
    return None
