"""Time of several candidates in one run: warmed up, interleaved, median and quartiles of several rounds.

Absolute times on a shared machine are noise; candidates that take turns see the same noise, so their ratio holds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

MAX_ROUNDS = 100


@dataclass(frozen=True)
class Timing:
    """Seconds per call of one candidate.

    Args:
        median: median of the rounds.
        lower: lower quartile of the rounds.
        upper: upper quartile of the rounds.
    """

    median: float
    lower: float
    upper: float


def time_interleaved(
    candidates: Mapping[str, Callable[[], object]],
    *,
    repeats: int = 9,
    min_seconds: float = 0.02,
    warmup: int = 2,
    total_seconds: float = 0.0,
) -> dict[str, Timing]:
    """Time every candidate `repeats` times or more, in turns.

    Args:
        candidates: functions without arguments, by name.
        repeats: number of rounds.
        min_seconds: time for which every candidate runs in a round, at least: a fast one is called several times.
        warmup: number of calls before the first round.
        total_seconds: time until which more rounds follow, up to 100.

    Raises:
        ValueError: if `repeats` is below 1.

    Example:
        >>> timings = time_interleaved({"one": lambda: 1}, repeats=3, min_seconds=0.001)
        >>> 0 < timings["one"].lower <= timings["one"].median
        True
    """
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1; got {repeats}")
    for run in candidates.values():
        for _ in range(warmup):
            run()
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    start, rounds = time.perf_counter(), 0
    while candidates and (rounds < repeats or (time.perf_counter() - start < total_seconds and rounds < MAX_ROUNDS)):
        for name, run in candidates.items():
            seconds[name].append(_seconds_per_call(run, min_seconds))
        rounds += 1
    return {name: _summary(values) for name, values in seconds.items()}


def _seconds_per_call(run: Callable[[], object], min_seconds: float) -> float:
    synchronize = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    synchronize()
    calls, elapsed, start = 0, 0.0, time.perf_counter()
    while elapsed < min_seconds or not calls:
        run()
        synchronize()
        calls, elapsed = calls + 1, time.perf_counter() - start
    return elapsed / calls


def _summary(seconds: list[float]) -> Timing:
    if len(seconds) == 1:
        return Timing(seconds[0], seconds[0], seconds[0])
    lower, median, upper = statistics.quantiles(seconds, n=4, method="inclusive")
    return Timing(median, lower, upper)
