"""Metrics: a number with its name, its unit and the direction that is better, and the meters that find them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from castling.measure.trees import Tree
from castling.plain_values import from_plain, plain_value

PERCENT = "%"


@dataclass(frozen=True)
class Metric:
    """One number about a network. Of several, the first one decides.

    Args:
        name: what the task calls it.
        value: the number; a share from 0 to 1 where the unit is `%`. None, which JSON has for it, becomes NaN.
        unit: what it is shown in: `%`, a word such as `px`, or nothing.
        higher_is_better: its direction.
        detail: whether it is one of many, such as those of single classes, which lines of text leave out.

    Example:
        >>> accuracy, error = Metric("top1", 0.98312), Metric("error", 1.25, "px", higher_is_better=False)
        >>> accuracy.shown, error.shown, error.rank
        ('98.31 %', '1.25 px', -1.25)
        >>> round(accuracy.lost_by(Metric("top1", 0.97)), 3), error.lost_by(Metric("error", 1.0, "px", False))
        (1.312, -0.25)
    """

    name: str
    value: float
    unit: str = PERCENT
    higher_is_better: bool = True
    detail: bool = False

    def __post_init__(self) -> None:
        if self.value is None:
            object.__setattr__(self, "value", math.nan)

    @property
    def shown(self) -> str:
        """The value as people read it."""
        if self.unit == PERCENT:
            return f"{100 * self.value:.2f} %"
        return f"{self.value:.4g} {self.unit}".rstrip()

    @property
    def rank(self) -> float:
        """The value, turned so that more is better."""
        return self.value if self.higher_is_better else -self.value

    @property
    def scale(self) -> float:
        """What the value is multiplied with to be shown."""
        return 100.0 if self.unit == PERCENT else 1.0

    @property
    def difference_unit(self) -> str:
        """What differences are shown in."""
        return "points" if self.unit == PERCENT else self.unit

    def lost_by(self, other: Metric) -> float:
        """How much worse another network is, in the unit of differences; below 0 if it is better."""
        return self.scale * (self.rank - other.rank)


Metrics = Sequence[Metric]


def as_values(metrics: Metrics) -> dict[str, float]:
    """Values by name, as logs have them."""
    return {metric.name: metric.value for metric in metrics}


def headlines(metrics: Metrics) -> list[Metric]:
    """Those that a line of text has room for."""
    return [metric for metric in metrics if not metric.detail]


def describe_metrics(metrics: Metrics) -> list[dict[str, Any]]:
    """All but the values, as logs have it once beside them."""
    return [
        {"name": metric.name, "unit": metric.unit, "higher_is_better": metric.higher_is_better}
        | ({"detail": True} if metric.detail else {})
        for metric in metrics
    ]


def with_values(described: Sequence[Mapping[str, Any]], values: Mapping[str, float]) -> list[Metric]:
    """The metrics of a log again, in their order.

    Raises:
        ValueError: for a description that is none of a metric.
    """
    named = [(plain_value(about.get("name"), str, "metrics.name"), about) for about in described]
    return [from_plain(Metric, {**about, "value": values[name]}, "metrics") for name, about in named if name in values]


class Meter(Protocol):
    """Collects what a network gives for batch after batch. It is gathered from all processes, so it must pickle."""

    def update(self, outputs: Tree, batch: Mapping[str, Any]) -> None:
        """Take in the outputs of a batch."""

    def merge(self, other: Any) -> None:
        """Take in all that a meter of the same kind, of another process, has seen."""

    def result(self) -> list[Metric]:
        """The metrics of all that was seen, the deciding one first.

        Raises:
            ValueError: if nothing was seen.
        """
