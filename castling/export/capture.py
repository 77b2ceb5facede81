"""The one graph that every format is written from: torch.export, with as many free axes as the network allows.

Sizes that the network computes with become a part of the graph; sizes that it decides by are fixed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx.experimental import _config as shape_config
from torch.utils._sympy.value_ranges import ValueRanges

logger = logging.getLogger(__name__)

AXES = {0: "batch", 2: "height", 3: "width"}
STEP = 32  # of networks without patches: what their strides come to


@dataclass(frozen=True)
class Captured:
    """A network as a graph.

    Args:
        program: of torch.export.
        dynamic: names of the free axes, of `batch`, `height` and `width`.
        side_step: free heights and widths must be multiples of it.
    """

    program: ExportedProgram
    dynamic: tuple[str, ...]
    side_step: int


def capture(model: nn.Module, example: Tensor, dynamic: bool = True) -> Captured:
    """Capture the inference of a network as a graph.

    Args:
        model: a network from images to a tensor; put into evaluation mode.
        example: an input `(B, C, H, W)`.
        dynamic: leave batch, height and width free where the network can; what cannot be free is fixed to the
            example's, and said in the log.

    Example:
        >>> capture(nn.Conv2d(3, 4, 3), torch.zeros(1, 3, 64, 64)).dynamic
        ('batch', 'height', 'width')
    """
    model.eval()
    step = side_step(model)
    for images, axes in _attempts(example, step) if dynamic else []:
        try:
            with torch.no_grad(), size_oblivious():
                model(images)  # a network of one size says so here, in a moment
                sizes = dict.fromkeys(axes, Dim.AUTO)
                program = torch.export.export(model, (images,), dynamic_shapes=(sizes,), strict=False)
        except Exception as error:  # the tracer and the networks raise whatever they like
            reason = str(error).partition("\n")[0]
            logger.info("%s cannot be free: %s", " and ".join(AXES[axis] for axis in axes), reason)
            continue
        free = _free_axes(program)
        if free == tuple(AXES[axis] for axis in axes):
            _forget_decisions(program)
            return Captured(program, free, step)
    with torch.no_grad():
        return Captured(torch.export.export(model, (example,), strict=False), (), step)


@contextmanager
def size_oblivious() -> Iterator[None]:
    """While a graph is made, do not ask whether a free size is 1, nor by sizes whether a view would do.

    Each such question would forbid the sizes with another answer, a batch of one among them, and takes long to answer
    in symbols.
    """
    with shape_config.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]
        yield


def side_step(model: nn.Module) -> int:
    """The number that heights and widths must be multiples of: the side of a patch, where there are patches."""
    patch = getattr(getattr(model, "patch_embed", None), "patch_size", None)
    return max(patch) if isinstance(patch, (tuple, list)) else patch if isinstance(patch, int) else STEP


def _attempts(example: Tensor, step: int) -> list[tuple[Tensor, tuple[int, ...]]]:
    """Inputs to trace with and their free axes, the freest first.

    Two images, as a batch of one is taken for a constant; and no square, nor the size that position embeddings were
    made for, as these are special cases of the code.
    """
    channels, height, width = example.shape[1:]
    sides = (-(-side // step) * step + more * step for side, more in ((height, 2), (width, 3)))
    return [
        (torch.zeros(2, channels, *sides, dtype=example.dtype), (0, 2, 3)),
        (torch.zeros(2, channels, height, width, dtype=example.dtype), (0,)),
    ]


def _free_axes(program: ExportedProgram) -> tuple[str, ...]:
    [name] = program.graph_signature.user_inputs
    [node] = [node for node in program.graph.nodes if node.name == name]
    shape = node.meta["val"].shape
    return tuple(label for axis, label in AXES.items() if not isinstance(shape[axis], int))


def _forget_decisions(program: ExportedProgram) -> None:
    """Let the program take sizes at which the code would have gone another way to the same result.

    Such as a copy where a view would do, or position embeddings that need no resampling. That the results are the same
    is for `verify` to see, at these sizes; engines other than torch never look at such guards.
    """
    program._guards_code = []
    for symbol in list(program._range_constraints):
        program._range_constraints[symbol] = ValueRanges(1, program._range_constraints[symbol].upper)
