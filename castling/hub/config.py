"""A run as a configuration of transformers: its recipe and the facts of its data, which its network is made of."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from castling.extras import import_extra
from castling.sentences import shown
from castling.tasks.task import Task
from castling.training.recipe import parse_recipe

transformers: Any = import_extra("transformers", "huggingface")


class CastlingConfig(transformers.PretrainedConfig):
    """What a published network is.

    Args:
        recipe: the recipe of its run, with all its sections.
        facts: what was kept of its data, such as the names of classes.
        castled: whether the branch was dropped.
        **others: what all configurations of transformers have; names of classes are those of the facts.

    Example:
        >>> CastlingConfig(facts={"labels": ["cat", "dog"]}).id2label
        {0: 'cat', 1: 'dog'}
    """

    model_type = "castling"

    def __init__(
        self,
        recipe: Mapping[str, Any] | None = None,
        facts: Mapping[str, Any] | None = None,
        castled: bool = True,
        **others: Any,
    ) -> None:
        self.recipe, self.facts, self.castled = dict(recipe or {}), dict(facts or {}), castled
        labels = self.facts.get("labels")
        if labels:
            others.setdefault("id2label", dict(enumerate(labels)))
            others.setdefault("label2id", {label: place for place, label in enumerate(labels)})
        super().__init__(**others)


def task_of(recipe: Mapping[str, Any], facts: Mapping[str, Any]) -> Task:
    """The task that a configuration describes.

    Raises:
        ValueError: for a recipe that is none, or a task of somebody's own whose module a folder would have imported.
    """
    if not recipe:
        raise ValueError("this configuration has no recipe: castling publish writes one that has")
    module, colon, _ = str(recipe.get("task")).partition(":")
    if colon and module not in sys.modules:
        raise ValueError(f"this folder needs the task {shown(recipe['task'])}: import {module} first, if it is yours")
    return parse_recipe(recipe).make_task(dict(facts))
