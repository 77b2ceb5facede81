"""What models cost as images grow: MACs and time at every size, all models in the same run.

Softmax attention is quadratic in the number of tokens and castled attention linear, so one size says little; the row
of sizes shows where the lines part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypedDict

import torch
from torch import nn

from castling.measure.eval_mode import eval_mode
from castling.measure.latency import time_interleaved
from castling.measure.macs import count_macs


class CostRow(TypedDict):
    """Cost of every model for one square image; plain data, so that it can be kept as JSON.

    Args:
        size: side of the image in pixels.
        macs: multiply-accumulates, by the model's name.
        milliseconds: median time of a forward pass, by the model's name.
    """

    size: int
    macs: dict[str, int]
    milliseconds: dict[str, float]


def cost_over_resolution(
    models: Mapping[str, nn.Module],
    sizes: Sequence[int],
    channels: int = 3,
    repeats: int = 3,
    on_size: Callable[[int], None] | None = None,
) -> list[CostRow]:
    """MACs and time of every model over the size of the image: batch 1, evaluation mode, models taking turns.

    Args:
        models: models by name, left as they were. The images are put on the device of each.
        sizes: sides of the square images in pixels, in any order.
        channels: channels of the images.
        repeats: rounds in which the models take turns at each size.
        on_size: listener, called with a size when it is done.

    Returns:
        One row for each size, the smallest first.

    Raises:
        ValueError: without models or sizes, for a size or a number of channels or repeats below 1.

    Example:
        >>> row, = cost_over_resolution({"conv": nn.Conv2d(1, 2, 3, padding=1)}, [8], channels=1)
        >>> row["size"], row["macs"], row["milliseconds"]["conv"] > 0
        (8, {'conv': 1152}, True)
    """
    if not models:
        raise ValueError("models is empty: there is nothing to measure")
    if not sizes or min(sizes) < 1:
        raise ValueError(f"sizes must be at least one positive number of pixels; got {list(sizes)}")
    if channels < 1 or repeats < 1:
        raise ValueError(f"channels and repeats must be at least 1; got {channels} and {repeats}")
    rows: list[CostRow] = []
    with eval_mode(*models.values()):
        # The largest first: then every other size runs in memory that the process already holds.
        for size in sorted(set(sizes), reverse=True):
            rows.append(_cost(models, size, channels, repeats))
            if on_size:
                on_size(size)
    return rows[::-1]


@torch.inference_mode()
def _cost(models: Mapping[str, nn.Module], size: int, channels: int, repeats: int) -> CostRow:
    image = torch.randn(1, channels, size, size)
    calls = {name: partial(model, image.to(_device(model))) for name, model in models.items()}
    macs = {name: count_macs(call).total for name, call in calls.items()}  # runs each once: a part of the warm-up
    timings = time_interleaved(calls, repeats=repeats, warmup=1)
    return CostRow(
        size=size,
        macs=macs,
        milliseconds={name: 1e3 * timing.median for name, timing in timings.items()},
    )


def _device(model: nn.Module) -> torch.device:
    """Where the model's weights are."""
    weight = next(model.parameters(), None)
    return torch.device("cpu") if weight is None else weight.device
