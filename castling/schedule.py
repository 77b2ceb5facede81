"""A number that moves from one value to another during training, as a function of progress alone.

The threshold of the mask and the blend of a conversion are two of these: each says what it may be and where it starts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from castling.config import check_choice

ScheduleName = Literal["fixed", "step", "linear", "cosine"]


@dataclass(frozen=True)
class Schedule:
    """A number that moves from `start` to `end` between two points of training.

    Args:
        kind: `fixed` stays at `start`; `step` jumps to `end` at `until`; `linear` and `cosine` move there between
            `since` and `until`.
        start: the number before `since`.
        end: the number from `until` on.
        since: share of training at which the movement begins.
        until: share of training at which it ends.

    Raises:
        ValueError: for an unknown kind, numbers outside their range, or shares that are not `0 <= since <= until <= 1`.

    Example:
        >>> [Schedule("step", 1.0, 5.0, until=0.5)(progress) for progress in (0, 0.49, 0.5)]
        [1.0, 1.0, 5.0]
    """

    quantity: ClassVar[str] = "number"

    kind: ScheduleName
    start: float
    end: float
    since: float = 0.0
    until: float = 1.0

    def __post_init__(self) -> None:
        check_choice(f"{self.quantity} schedule", self.kind, get_args(ScheduleName))
        self.check_value(self.start)
        self.check_value(self.end)
        if not 0 <= self.since <= self.until <= 1:
            raise ValueError(f"expected 0 <= since <= until <= 1; got since={self.since}, until={self.until}")

    def check_value(self, value: float) -> None:
        """Refuse a number outside the range of what moves.

        Raises:
            ValueError: names the number and the range; never here, where any number will do.
        """

    def __call__(self, progress: float) -> float:
        """The number at this share of training, from 0 to 1."""
        if self.kind == "fixed":
            return self.start
        if progress >= self.until:
            return self.end
        if self.kind == "step" or progress <= self.since:
            return self.start
        moved = (progress - self.since) / (self.until - self.since)
        if self.kind == "cosine":
            moved = (1 - math.cos(math.pi * moved)) / 2
        return self.start + (self.end - self.start) * moved
