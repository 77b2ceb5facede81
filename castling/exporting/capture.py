"""The one graph that every format is written from: torch.export, with as many free axes as the network allows.

Sizes that the network computes with become a part of the graph; sizes that it decides by are fixed.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch._dynamo.exc import UserError, UserErrorType
from torch.export import Dim, ExportedProgram
from torch.fx.experimental import _config as shape_config
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError, is_concrete_int
from torch.utils._pytree import tree_unflatten
from torch.utils._sympy.value_ranges import ValueRanges

from castling.attention import branches
from castling.conversion.folding import optimize
from castling.exporting.exported import ExportFailed
from castling.exporting.outputs import Form, form_of
from castling.models.input_size import patch_size

logger = logging.getLogger(__name__)

AXES = {0: "batch", 2: "height", 3: "width"}
STEP = 32  # of networks without patches: what their strides come to


@dataclass(frozen=True)
class Captured:
    """A network as a graph.

    Args:
        program: the graph of torch.export.
        form: the tree of its outputs' names.
        dynamic: the names of the free axes, of `batch`, `height` and `width`.
        side_step: the number that free heights and widths are multiples of.
    """

    program: ExportedProgram
    form: Form
    dynamic: tuple[str, ...]
    side_step: int

    @property
    def input_shape(self) -> tuple[int | None, ...]:
        """The lengths of the input's axes; None where they are free."""
        return _input_shape(self.program)


def folded(model: nn.Module) -> nn.Module:
    """A copy as it goes into files: folded, or as it is where it has branches."""
    return copy.deepcopy(model) if branches(model) else optimize(model)


def capture(model: nn.Module, example: Tensor, dynamic: bool = True, outputs: Sequence[str] = ()) -> Captured:
    """Capture the inference of a network as a graph.

    Args:
        model: a network from images to a tree of tensors; put into evaluation mode.
        example: an input `(B, C, H, W)`.
        dynamic: whether batch, height and width are left free where the network can. Sizes that it refuses, or that
            it decides by, are fixed to the example's, and that is said in the log.
        outputs: a name for each of the outputs, in order; by default those of the tree.

    Raises:
        ExportFailed: if torch.export cannot run the network for any other reason than a size.
        ValueError: if the outputs are no tree of tensors, or the names are not theirs.

    Example:
        >>> capture(nn.Conv2d(3, 4, 3), torch.zeros(1, 3, 64, 64)).dynamic
        ('batch', 'height', 'width')
    """
    model.eval()
    step = side_step(model)
    for images, axes in _attempts(example, step) if dynamic else []:
        names = " and ".join(AXES[axis] for axis in axes)
        try:
            with torch.no_grad():
                model(images)  # a network of one size says so here, in a moment
        except Exception as error:  # networks raise whatever they like
            logger.info("%s fixed: it refuses an input of %s: %s", names, tuple(images.shape), reason(error))
            continue
        program = _graph(model, images, axes)
        if program is not None and _free_axes(program) == tuple(AXES[axis] for axis in axes):
            _forget_decisions(program)
            return Captured(program, _form(program, outputs), _free_axes(program), step)
        logger.info("%s fixed: the network decides by them", names)
    program = _graph(model, example, ())
    assert program is not None
    return Captured(program, _form(program, outputs), (), step)


def reason(error: Exception) -> str:
    """The kind and the first line of an error, as those of tracers go on for pages."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


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
    return max(patch_size(model) or (STEP,))


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


def _graph(model: nn.Module, images: Tensor, axes: Sequence[int]) -> ExportedProgram | None:
    """The graph with these axes free; None where torch.export says that one of them has a single legal size.

    Raises:
        ExportFailed: for any other error; a file of fixed sizes would hide it.
    """
    sizes = (dict.fromkeys(axes, Dim.AUTO),) if axes else None
    try:
        with torch.no_grad(), size_oblivious():
            return torch.export.export(model, (images,), dynamic_shapes=sizes, strict=False)
    except Exception as error:
        violated = isinstance(error, UserError) and error.error_type is UserErrorType.CONSTRAINT_VIOLATION
        if axes and (violated or isinstance(error, ConstraintViolationError)):
            return None
        free = f" with free {', '.join(AXES[axis] for axis in axes)}" if axes else ""
        raise ExportFailed(f"torch.export cannot capture the network{free}: {reason(error)}") from error


def _form(program: ExportedProgram, names: Sequence[str]) -> Form:
    """The form of a graph's outputs, found without running it: it may be large."""
    [results] = program.graph.output_node().args
    assert isinstance(results, (list, tuple))
    assert program.call_spec.out_spec is not None
    tensors = [result.meta["val"] if isinstance(result, torch.fx.Node) else result for result in results]
    return form_of(tree_unflatten(tensors, program.call_spec.out_spec), names)


def _input_shape(program: ExportedProgram) -> tuple[int | None, ...]:
    [name] = program.graph_signature.user_inputs
    [node] = [node for node in program.graph.nodes if node.name == name]
    return tuple(int(size) if is_concrete_int(size) else None for size in node.meta["val"].shape)


def _free_axes(program: ExportedProgram) -> tuple[str, ...]:
    shape = _input_shape(program)
    return tuple(label for axis, label in AXES.items() if shape[axis] is None)


def _forget_decisions(program: ExportedProgram) -> None:
    """Let the program take sizes at which the code would have gone another way to the same result.

    Such as a copy where a view would do, or position embeddings that need no resampling. That the results are the same
    is for `verify` to see, at these sizes; engines other than torch never look at such guards.
    """
    program._guards_code = []
    for symbol in list(program._range_constraints):
        program._range_constraints[symbol] = ValueRanges(1, program._range_constraints[symbol].upper)
