"""A file that was written, seen from outside: something that runs, with a graph that can be looked into."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from castling.measure.trees import Tree

Runner = Callable[[Tensor], Tree]


class ExportFailed(ValueError):
    """A network cannot be written, or a file that was written does not do what the network does."""


class RunningOperator(NamedTuple):
    """An operator as its engine runs it.

    Args:
        kind: the type of the operator.
        native: whether the engine has code of its own for it.
    """

    kind: str
    native: bool


@dataclass(frozen=True)
class ExportedFile:
    """An opened file.

    Args:
        run: a function from images `(B, C, H, W)` to the tree of outputs, in the engine of the format.
        operators: the number of operators of each type in the file.
        running: a function from images to the operators that the engine runs for them; what is native is said where
            each format is opened.
        quadratic: a function from images and N to the operators that make a result with two axes of at least N.
    """

    run: Runner
    operators: Counter[str]
    running: Callable[[Tensor], list[RunningOperator]]
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
