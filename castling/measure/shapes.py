"""Networks of shapes alone: made in a moment, to be counted without computing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

# What initial values are made with. On the meta device they have no effect, but take most of the time.
_VALUES = {
    *(Tensor.normal_, Tensor.uniform_, Tensor.fill_, Tensor.zero_),
    *(Tensor.clamp_, Tensor.erfinv_, Tensor.mul_, Tensor.add_),
}


class _NoValues(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        return args[0] if func in _VALUES and args[0].is_meta else func(*args, **(kwargs or {}))


@contextmanager
def shapes_only() -> Iterator[None]:
    """Make networks and tensors on the meta device, and spare initial weights that nobody can read.

    Example:
        >>> with shapes_only():
        ...     layer = torch.nn.Linear(8, 16)
        >>> layer(torch.empty(2, 8, device="meta")).shape
        torch.Size([2, 16])
    """
    with torch.device("meta"), _NoValues():
        yield
