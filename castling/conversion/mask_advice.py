"""Whether castling can become free at all: said before training, with the nearest setting in which it can.

The largest entry of a softmax row over N keys is at least 1/N, so a threshold of 0.02 never empties a mask over fewer
than 50 keys, however long training goes on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from castling.attention import branches, can_empty
from castling.conversion.converted import first_names
from castling.measure.eval_mode import eval_mode
from castling.measure.occupancy import record_occupancy


@torch.no_grad()
def count_keys(model: nn.Module, *inputs: Tensor) -> dict[str, int]:
    """Keys that each attention with a branch sees, for inputs of this size."""
    device = next(model.parameters()).device
    with eval_mode(model), record_occupancy(model) as record:
        model(*(given.to(device) for given in inputs))
    return record.num_keys


def mask_advice(model: nn.Module, example: Tensor | Sequence[Tensor], last_threshold: float | None = None) -> list[str]:
    """Where the mask cannot become empty.

    Args:
        model: a model with its branches.
        example: a picture `(1, C, H, W)` of the size that it will see, or all inputs where it has several.
        last_threshold: the end of a schedule; None for the threshold that the branches have.

    Returns:
        One sentence per number of keys and threshold; none if castling can become free.

    Example:
        >>> from castling import CastlingAttention
        >>> print(mask_advice(CastlingAttention(64, 4), torch.zeros(1, 49, 64))[0])
        1 attention sees 49 keys (self): a threshold of 0.02 can never empty a mask over so few, as the largest weight \
of a row is at least 1/49. Nearest settings that can: a threshold of 0.0205, a relative threshold of 1 or more, or a \
schedule that ends at 1
    """
    inputs = (example,) if isinstance(example, Tensor) else example
    groups: dict[tuple[int, float, bool], list[str]] = {}
    found = branches(model)
    for name, num_keys in count_keys(model, *inputs).items():
        branch = found[name]
        threshold = branch.threshold if last_threshold is None else last_threshold
        if not can_empty(threshold, num_keys, branch.relative):
            groups.setdefault((num_keys, threshold, branch.relative), []).append(name or "self")
    return [_sentence(*group, names) for group, names in groups.items()]


def _sentence(num_keys: int, threshold: float, relative: bool, names: list[str]) -> str:
    kind = "relative threshold" if relative else "threshold"
    settings = ["a relative threshold of 1 or more", "or a schedule that ends at 1"]
    if not relative:
        settings.insert(0, f"a threshold of {math.ceil(1e4 / num_keys) / 1e4:g}")
    return (
        f"{_count(names)} {num_keys} keys ({first_names(names, 1)}): a {kind} of {threshold:g} can never empty a mask "
        f"over so few, as the largest weight of a row is at least 1/{num_keys}. Nearest settings that can: "
        + ", ".join(settings)
    )


def _count(names: list[str]) -> str:
    return "1 attention sees" if len(names) == 1 else f"{len(names)} attentions see"
