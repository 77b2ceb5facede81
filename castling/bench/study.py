"""Studies: a question, the variants of a recipe that answer it, and seeds, in one YAML file.

A variant is the study's recipe, or one of its own, with what all variants share and what makes it different. All of it
is checked when a study is read: a variant that makes no recipe is refused before the first one trains.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from castling.config import check_choice
from castling.recipes import find_recipe, find_study
from castling.report.paper import paper_numbers
from castling.sentences import shown
from castling.settings import from_mapping, read_yaml, with_changes, with_overrides
from castling.training.recipe import Recipe, parse_recipe

NAME = re.compile(r"[A-Za-z0-9][\w.+-]*")


@dataclass(frozen=True)
class Variant:
    """One of the things that a study compares.

    Args:
        set: settings that differ from the study's, by path.
        recipe: another recipe than the study's.
        note: what it is, in a few words.
        against: the variants that it is compared with, or the one, instead of the study's baseline.
        paper: its row in the paper's table that the study names.
    """

    set: dict[str, Any] = field(default_factory=dict)
    recipe: str | None = None
    note: str = ""
    against: tuple[str, ...] | None = None
    paper: str | None = None


@dataclass(frozen=True)
class PaperColumn:
    """Where the paper has figures of the same kind: a table and a column of `paper_numbers.csv`.

    Args:
        table: the table.
        column: the column.
    """

    table: str
    column: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a study says of all its variants.

    Args:
        title: a few words.
        question: what is to be found out.
        recipe: the recipe that variants begin with.
        baseline: the variant that all others are compared with, seed by seed; None for those alone that say `against`.
        metric: the metric that is compared; None for the task's deciding one.
        common: settings of all variants, by path.
        seeds: the seeds with which each is trained.
        budget: how much training each gets, in words.
        pictures: training pictures of an epoch, from which its cost is told without opening the data.
        paper: where the paper has such figures; None where it has none.
    """

    title: str
    question: str
    recipe: str
    baseline: str | None = None
    metric: str | None = None
    common: dict[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0, 1, 2)
    budget: str = ""
    pictures: int | None = None
    paper: PaperColumn | None = None


@dataclass(frozen=True, kw_only=True)
class Study(Plan):
    """What is compared, and how.

    Args:
        name: its name, which its results have.
        variants: what is compared, by name.
        overrides: settings of all runs that were given on the way, `key=value`; they come last.

    Raises:
        ValueError: names the first that is wrong.
    """

    name: str
    variants: dict[str, Variant]
    overrides: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.variants:
            raise ValueError("variants: a study compares one or more")
        for name in self.variants:
            if not isinstance(name, str) or not NAME.fullmatch(name):
                raise ValueError(f"variants are named by letters, digits and _ . + -; got {shown(name)}")
        check_seeds(self.seeds)
        if self.pictures is not None and self.pictures < 1:
            raise ValueError(f"pictures must be at least 1; got {self.pictures}")
        if self.baseline is not None:
            check_choice("baseline", self.baseline, self.variants)
        for name, variant in self.variants.items():
            for other in variant.against or ():
                check_choice(f"variants.{name}.against", other, [known for known in self.variants if known != name])
        for name, variant in self.variants.items():
            if variant.paper is not None:
                self._check_paper(name, variant.paper)

    def _check_paper(self, name: str, row: str) -> None:
        if self.paper is None:
            raise ValueError(f"variants.{name}.paper is {row!r}: paper must name the table and column of that row")
        table, column = self.paper.table, self.paper.column
        rows = [
            known for known_table, known, in_column in paper_numbers() if (known_table, in_column) == (table, column)
        ]
        check_choice(f"row of the paper's table {table}, column {column}", row, rows)

    def opponents(self, variant: str) -> tuple[str, ...]:
        """The variants that another is compared with; none for the baseline itself."""
        against = self.variants[variant].against
        if against is not None:
            return against
        return () if self.baseline is None or self.baseline == variant else (self.baseline,)

    def paper_figure(self, variant: str) -> float | None:
        """What the paper has in the row of a variant; None where it has none."""
        row = self.variants[variant].paper
        if row is None or self.paper is None:
            return None
        return float(paper_numbers()[self.paper.table, row, self.paper.column])

    @cached_property
    def recipes(self) -> dict[str, Recipe]:
        """The recipe of every variant, with whatever seed it has.

        Raises:
            ValueError: for settings that make no recipe; names the variant.
        """
        return {variant: self._recipe(variant) for variant in self.variants}

    def run_recipe(self, variant: str, seed: int) -> Recipe:
        """The recipe of one run."""
        return replace(self.recipes[variant], seed=seed)

    def _recipe(self, variant: str) -> Recipe:
        chosen = self.variants[variant]
        try:
            file = find_recipe(chosen.recipe or self.recipe)
            values = with_changes(read_yaml(file.read_bytes(), str(file)), [*self.common.items(), *chosen.set.items()])
            return parse_recipe(with_overrides(values, self.overrides))
        except ValueError as error:
            raise ValueError(f"study {self.name}, variant {variant}: {error}") from error


def check_seeds(seeds: Sequence[int]) -> None:
    """Refuse seeds that are none, or none at all.

    Raises:
        ValueError: names them.
    """
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds are different whole numbers from 0 on; got {list(seeds)}")


def load_study(name: str | Path, overrides: Iterable[str] = ()) -> Study:
    """Read a study; of one that is `like` another, what its file does not say is the other's.

    Args:
        name: a file, or the name of a shipped study, such as `kernels`.
        overrides: settings of all its runs, `key=value` with dots between the keys.

    Raises:
        ValueError: if there is no such study, for a wrong key or value, or a variant that makes no recipe.

    Example:
        >>> study = load_study("kernels")
        >>> study.run_recipe("linear_angular", seed=1).settings.model.attention.kernel
        'linear_angular'
    """
    path = find_study(name)
    return parse_study(_with_others(path), path.stem, overrides)


def _with_others(path: Path) -> dict[str, Any]:
    """What a study's file says, and what those say that it is like."""
    values, seen = read_yaml(path.read_bytes(), str(path)), [path]
    while "like" in values:
        other = find_study(str(values.pop("like")))
        if other in seen:
            raise ValueError(f"{path}: studies that are like each other: {', '.join(one.stem for one in seen)}")
        seen.append(other)
        values = {**read_yaml(other.read_bytes(), str(other)), **values}
    return values


def parse_study(values: Mapping[str, Any], name: str, overrides: Iterable[str] = ()) -> Study:
    """A study from a nested mapping.

    Args:
        values: its fields, as in a file.
        name: its name.
        overrides: settings of all its runs, `key=value`.

    Raises:
        ValueError: for a wrong key or value, or a variant that makes no recipe.
    """
    for key in values:
        check_choice("key", key, [*(one.name for one in fields(Plan)), "variants"])
    variants = values.get("variants")
    if not isinstance(variants, Mapping):
        raise ValueError(f"study {name}: variants is a mapping of names to variants; got {shown(variants)}")
    try:
        parsed = {key: _parse_variant(key, value) for key, value in variants.items()}
        plan = from_mapping(Plan, {key: value for key, value in values.items() if key != "variants"})
        settings = {one.name: getattr(plan, one.name) for one in fields(Plan)}
        study = Study(name=name, variants=parsed, overrides=tuple(overrides), **settings)
    except ValueError as error:
        raise ValueError(f"study {name}: {error}") from error
    tasks = {recipe.task for recipe in study.recipes.values()}
    if len(tasks) > 1:
        raise ValueError(
            f"study {name}: variants of several tasks have no metric in common: {', '.join(sorted(tasks))}"
        )
    return study


def _parse_variant(name: str, values: Any) -> Variant:
    against = values.get("against") if isinstance(values, Mapping) else None
    if isinstance(against, str):
        values = {**values, "against": [against]}
    return from_mapping(Variant, {} if values is None else values, f"variants.{name}")
