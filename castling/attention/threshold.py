"""The cut of the auxiliary mask: when it can empty the mask at all, and how it moves during training.

Sec. 3.2.2 names fixed and dynamic schedules. The largest entry of a softmax row over N keys is at least 1/N, so a cut
below 1/N never empties the mask, however long training goes on.
"""

from __future__ import annotations

from dataclasses import dataclass

from castling.config import check_threshold
from castling.schedule import Schedule, ScheduleName


def absolute_cut(threshold: float, num_tokens: int, relative: bool = False) -> float:
    """The attention weight at or below which an entry is dropped, for a mask over `num_tokens` keys."""
    return threshold / num_tokens if relative else threshold


def can_empty(threshold: float, num_tokens: int, relative: bool = False) -> bool:
    """Whether any attention over `num_tokens` keys can have an empty mask under this threshold.

    Where it cannot, castling is never free. Where it can, it still takes attention that is flat enough.

    Raises:
        ValueError: for a threshold outside its range or fewer than one token.

    Example:
        >>> can_empty(0.02, 49), can_empty(0.02, 50), can_empty(1.0, 49, relative=True)
        (False, True, True)
    """
    check_threshold(threshold, relative)
    if num_tokens < 1:
        raise ValueError(f"num_tokens must be at least 1; got {num_tokens}")
    return (threshold if relative else threshold * num_tokens) >= 1


@dataclass(frozen=True)
class ThresholdSchedule(Schedule):
    """A threshold that moves from `start` to `end` between two points of training.

    Args:
        kind: `fixed`, `step`, `linear` or `cosine`, as `Schedule` has them.
        start: threshold before `since`.
        end: threshold from `until` on; 1 closes an absolute mask for certain.
        since: share of training at which the movement begins.
        until: share of training at which it ends.

    Raises:
        ValueError: for an unknown kind, thresholds below 0, or shares that are not `0 <= since <= until <= 1`.

    Example:
        >>> [ThresholdSchedule("linear", 0.02, 1.0, until=0.5)(progress) for progress in (0, 0.25, 0.9)]
        [0.02, 0.51, 1.0]
    """

    quantity = "threshold"

    kind: ScheduleName = "fixed"
    start: float = 0.02
    end: float = 1.0

    def check_value(self, value: float) -> None:
        """Refuse a threshold below 0; above 1 it may be a relative one."""
        check_threshold(value, relative=True)
