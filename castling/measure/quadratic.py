"""The proof that a forward pass is linear in the number of tokens: no tensor in it has an N x N shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _ShapeRecorder(TorchDispatchMode):
    """Collects the operators whose result has two axes of length N or more, and fused softmax attention."""

    def __init__(self, num_tokens: int) -> None:
        super().__init__()
        self.num_tokens = num_tokens
        self.found: list[str] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        shapes = [tuple(tensor.shape) for tensor in tree_leaves(result) if isinstance(tensor, Tensor)]
        quadratic = [shape for shape in shapes if sum(length >= self.num_tokens for length in shape) >= 2]
        if "scaled_dot_product" in str(func):
            quadratic = shapes[:1]
        self.found += [f"{func} -> {shape}" for shape in quadratic]
        return result


def quadratic_tensors(run: Callable[[], object], num_tokens: int) -> list[str]:
    """Operators of `run()` whose result has two axes of at least `num_tokens`.

    Choose more tokens than channels, or a weight matrix will look like an attention map. Fused softmax attention hides
    its map from the dispatcher and is listed whatever its shapes.

    Args:
        run: any forward or backward pass.
        num_tokens: the number of tokens, N.

    Returns:
        One line per operator with the shape of its result; empty if the pass is linear.

    Example:
        >>> import torch
        >>> x = torch.randn(100, 8)
        >>> quadratic_tensors(lambda: x.T @ x, 100), quadratic_tensors(lambda: x @ x.T, 100)
        ([], ['aten.mm.default -> (100, 100)'])
    """
    with _ShapeRecorder(num_tokens) as recorder:
        run()
    return recorder.found
