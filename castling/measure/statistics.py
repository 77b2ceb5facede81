"""Few numbers, honestly: mean and spread, differences of pairs with their interval, and how far two orders agree.

Seeds are few, so intervals are Student's: of three differences, the half width is 2.5 standard deviations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean with its interval.

    Args:
        mean: the mean.
        low: the lower end of the interval; None for a single number, of which nobody knows how it would vary.
        high: the upper end.
        count: of how many numbers it is.
    """

    mean: float
    low: float | None
    high: float | None
    count: int

    @property
    def excludes_zero(self) -> bool:
        """Whether all of the interval lies on one side of zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def sample_deviation(values: Sequence[float]) -> float | None:
    """The standard deviation of a sample; None for a single number.

    Example:
        >>> sample_deviation([1.0, 2.0, 3.0]), sample_deviation([1.0])
        (1.0, None)
    """
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def estimate(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """The mean of a sample with Student's interval.

    Args:
        values: one number or more; differences, for a paired comparison.
        confidence: the share of intervals that have the true mean in them.

    Raises:
        ValueError: without numbers.

    Example:
        >>> found = estimate([1.0, 2.0, 3.0])
        >>> round(found.low, 3), found.mean, round(found.high, 3), found.excludes_zero
        (-0.484, 2.0, 4.484, False)
    """
    if not values:
        raise ValueError("there is no number to take the mean of")
    mean = math.fsum(values) / len(values)
    deviation = sample_deviation(values)
    if deviation is None:
        return Estimate(mean, None, None, 1)
    half = t_quantile(confidence, len(values) - 1) * deviation / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half, len(values))


def t_quantile(confidence: float, degrees: int) -> float:
    """How many standard errors lie on either side of a mean in Student's interval.

    Args:
        confidence: share of the distribution between the two ends, within (0, 1).
        degrees: degrees of freedom, one less than there are numbers.

    Raises:
        ValueError: for other numbers.

    Example:
        >>> round(t_quantile(0.95, 2), 3), round(t_quantile(0.95, 4), 3)
        (4.303, 2.776)
    """
    if not 0 < confidence < 1 or degrees < 1:
        raise ValueError(f"confidence must lie within (0, 1) and degrees be 1 or more; got {confidence} and {degrees}")
    low, high = 0.0, 1.0
    while _between(high, degrees) < confidence:
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        if _between(middle, degrees) < confidence:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _between(t: float, degrees: int) -> float:
    """The probability that Student's t lies from -t to t: the finite sums for whole degrees (Abramowitz 26.7.3-4)."""
    angle = math.atan(t / math.sqrt(degrees))
    cosine, odd = math.cos(angle), degrees % 2
    term, total = (cosine if odd else 1.0), 0.0
    for number in range(1 + odd, degrees, 2):
        total += term
        term *= cosine * cosine * number / (number + 1)
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's rank correlation; equal values share the mean of their ranks.

    Args:
        first: numbers.
        second: as many numbers, of the same things in the same order.

    Returns:
        From -1 to 1; None for fewer than three, or where all of one side are equal.

    Raises:
        ValueError: for different counts.

    Example:
        >>> rank_correlation([1, 2, 3, 4], [10, 20, 40, 30])
        0.8
    """
    if len(first) != len(second):
        raise ValueError(f"expected as many numbers on either side; got {len(first)} and {len(second)}")
    if len(first) < 3:
        return None
    ranks = [_ranks(values) for values in (first, second)]
    middle = (len(first) + 1) / 2
    centred = [[rank - middle for rank in side] for side in ranks]
    spread = math.prod(math.fsum(rank * rank for rank in side) for side in centred)
    if not spread:
        return None
    return math.fsum(a * b for a, b in zip(*centred, strict=True)) / math.sqrt(spread)


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) + 1) / 2 for value in values]
