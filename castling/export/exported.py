"""A file that was written, seen from outside: something that runs, with a graph that can be looked into."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class ExportedFile:
    """An opened file.

    Args:
        run: images `(B, C, H, W)` to outputs, in the engine of the format.
        operators: how many there are of each type.
        native: how many of them the engine runs by itself.
        quadratic: names the operators that, for these images, make a result with two axes of at least N.
    """

    run: Callable[[Tensor], Tensor]
    operators: Counter[str]
    native: int
    quadratic: Callable[[Tensor, int], list[str]]


def is_softmax(operator: str) -> bool:
    """Whether an operator is a softmax or has one inside.

    Example:
        >>> [is_softmax(name) for name in ("Softmax", "aten.scaled_dot_product_attention.default", "MatMul")]
        [True, True, False]
    """
    return "softmax" in operator.lower() or _is_fused(operator)


def quadratic_shapes(shapes: Iterable[tuple[str, tuple[int, ...]]], num_tokens: int) -> list[str]:
    """Those of named shapes that have two axes of at least N, one line each.

    Fused softmax attention hides its map and is listed whatever its shape.

    Example:
        >>> quadratic_shapes([("a", (1, 100, 100)), ("b", (100, 8))], 100)
        ['a -> (1, 100, 100)']
    """
    return [
        f"{name} -> {shape}"
        for name, shape in shapes
        if sum(length >= num_tokens for length in shape) >= 2 or _is_fused(name)
    ]


def _is_fused(operator: str) -> bool:
    name = operator.lower().replace("_", "")
    return "scaleddotproduct" in name or name == "attention"
