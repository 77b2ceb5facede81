"""Whether castling can become free at all: said before training, with the nearest setting in which it can.

The largest entry of a softmax row over N keys is at least 1/N, so a threshold of 0.02 never empties a mask over fewer
than 50 keys, however long training goes on.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from castling.attention import branches, can_empty
from castling.measure.eval_mode import eval_mode
from castling.measure.occupancy import record_occupancy


@torch.no_grad()
def count_keys(model: nn.Module, example: Tensor) -> dict[str, int]:
    """Keys that each attention with a branch sees, for a picture of this size."""
    with eval_mode(model), record_occupancy(model) as record:
        model(example.to(next(model.parameters()).device))
    return record.num_keys


def mask_advice(model: nn.Module, example: Tensor, last_threshold: float | None = None) -> list[str]:
    """Where the mask cannot become empty.

    Args:
        model: with its branches.
        example: a picture `(1, C, H, W)` of the size that it will see.
        last_threshold: where a schedule ends; None for the threshold that the branches have.

    Returns:
        One sentence per number of keys and threshold; none if castling can become free.

    Example:
        >>> from castling import CastlingAttention
        >>> print(mask_advice(CastlingAttention(64, 4), torch.zeros(1, 49, 64))[0])
        1 attention sees 49 keys (self): a threshold of 0.02 can never empty its mask, as the largest weight of a row \
is at least 1/49. Nearest settings that can: a threshold of 0.0205, a relative threshold of 1 or more, or a schedule \
that ends at 1
    """
    groups: dict[tuple[int, float, bool], list[str]] = {}
    found = branches(model)
    for name, num_keys in count_keys(model, example).items():
        branch = found[name]
        threshold = branch.threshold if last_threshold is None else last_threshold
        if not can_empty(threshold, num_keys, branch.relative):
            groups.setdefault((num_keys, threshold, branch.relative), []).append(name or "self")
    return [_sentence(*group, names) for group, names in groups.items()]


def _sentence(num_keys: int, threshold: float, relative: bool, names: list[str]) -> str:
    nearest = f"a threshold of {math.ceil(1e4 / num_keys) / 1e4:g}, " if not relative else ""
    many = len(names) > 1
    return (
        f"{len(names)} attention{'s see' if many else ' sees'} {num_keys} keys ({names[0]}{', ...' if many else ''}): "
        f"a {'relative ' if relative else ''}threshold of {threshold:g} can never empty {'their' if many else 'its'} "
        f"mask, as the largest weight of a row is at least 1/{num_keys}. "
        f"Nearest settings that can: {nearest}a relative threshold of 1 or more, or a schedule that ends at 1"
    )
