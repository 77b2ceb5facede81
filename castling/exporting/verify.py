"""The proof that a file computes what the network computes, and as cheaply.

Outputs are compared over several batches and sizes, and what the network does without, a softmax or a tensor of N x N,
the file must do without as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from castling.exporting.exported import ExportedFile, ExportFailed, is_softmax
from castling.exporting.formats import open_export, read_metadata
from castling.exporting.larger_picture import Write, search_quadratic
from castling.measure.eval_mode import eval_mode
from castling.measure.trees import absolute_differences, named_leaves

MIN_NATIVE = 0.8  # our networks reach 0.9 in every engine


@dataclass(frozen=True)
class Verification:
    """What was seen.

    Args:
        path: the file.
        largest_difference: the largest difference of any two outputs, of the file and of PyTorch.
        tolerance: the limit that it was held against.
        shapes: the shapes of the inputs.
        dynamic: the axes of the input whose length is free.
        num_softmax: the number of operators that are a softmax or have one inside.
        quadratic: the operators with a result of N x N; none is the proof. None where the network itself takes no
            picture that is large enough to tell tokens from channels.
        num_tokens: the N at which was looked for them; None likewise.
        obstacle: the reason for such a None; empty elsewhere.
        operators: the number of operators of each type.
        native_share: the share of running operators that the engine has code of its own for; what that means is said
            where each format is opened.
    """

    path: Path
    largest_difference: float
    tolerance: float
    shapes: tuple[tuple[int, ...], ...]
    dynamic: tuple[str, ...]
    num_softmax: int
    quadratic: tuple[str, ...] | None
    num_tokens: int | None
    obstacle: str
    operators: dict[str, int]
    native_share: float

    @property
    def num_operators(self) -> int:
        """Operators of all types."""
        return sum(self.operators.values())


def verify(
    path: Path | str,
    model: nn.Module,
    inputs: Sequence[Tensor],
    tolerance: float = 1e-4,
    min_native: float = MIN_NATIVE,
    write: Write | None = None,
) -> Verification:
    """Compare a file with the network that it was made from.

    Args:
        path: an exported file.
        model: the network in PyTorch; left as it is.
        inputs: images `(B, C, H, W)` of every shape to compare at.
        tolerance: the largest legal difference of two outputs.
        min_native: the smallest legal share of operators that the engine has code of its own for.
        write: how the file is made of a graph, for a twin of larger pictures; by default as its format does.

    Raises:
        ExportFailed: names what differs.
        ValueError: without inputs, or for a file that is not there or has no metadata.
    """
    if not inputs:
        raise ValueError("inputs is empty: there is nothing to compare on")
    file, metadata, path = open_export(path), read_metadata(path), Path(path)
    with eval_mode(model):
        largest = max(_difference(file, model, images, path, tolerance) for images in inputs)
        num_softmax = sum(count for name, count in file.operators.items() if is_softmax(name))
        if num_softmax and not _softmax_calls(model, inputs[0]):
            raise ExportFailed(f"{path} has {num_softmax} softmax operators; the network in PyTorch has none")
        native_share = _check_native(file, inputs[0], path, min_native)
        search = search_quadratic(file, path, model, inputs[0], metadata, write)
    return Verification(
        path=path,
        largest_difference=largest,
        tolerance=tolerance,
        shapes=tuple(tuple(images.shape) for images in inputs),
        dynamic=metadata.dynamic,
        num_softmax=num_softmax,
        quadratic=search.found,
        num_tokens=search.num_tokens,
        obstacle=search.obstacle,
        operators=dict(file.operators.most_common()),
        native_share=native_share,
    )


def example_inputs(example: Tensor, dynamic: Sequence[str], side_step: int) -> list[Tensor]:
    """Random inputs to compare at: the example's shape, and where axes are free two more batches and resolutions.

    Example:
        >>> shapes = [tuple(x.shape) for x in example_inputs(torch.zeros(1, 3, 32, 32), ["batch", "height"], 4)]
        >>> shapes
        [(1, 3, 32, 32), (3, 3, 32, 32), (1, 3, 48, 32), (2, 3, 40, 32)]
    """
    batch, channels, height, width = example.shape
    shapes = [(batch, height, width)]
    if "batch" in dynamic:
        shapes += [(batch + 2, height, width)]
    if "height" in dynamic or "width" in dynamic:
        down, right = (int(side in dynamic) * side_step for side in ("height", "width"))
        other = batch + 1 if "batch" in dynamic else batch
        shapes += [(batch, height + 4 * down, width + 4 * right), (other, height + 2 * down, width + right)]
    seed = torch.Generator().manual_seed(0)
    return [torch.randn(size, channels, *sides, generator=seed) for size, *sides in shapes]


def _difference(file: ExportedFile, model: nn.Module, images: Tensor, path: Path, tolerance: float) -> float:
    shape = tuple(images.shape)
    with torch.no_grad():
        wanted = named_leaves(model(images))
    try:
        found = named_leaves(file.run(images))
    except Exception as error:  # each engine raises its own
        raise ExportFailed(f"{path} does not run for an input of {shape}: {error}") from error
    try:
        absolute_differences(found, wanted)
    except ValueError as error:
        raise ExportFailed(f"{path} gives something else than PyTorch for an input of {shape}: {error}") from error
    largest = 0.0
    for name, tensor in wanted.items():
        difference = float(absolute_differences(found[name], tensor).max()) if tensor.numel() else 0.0
        if not difference <= tolerance:  # nor if it is no number
            raise ExportFailed(
                f"{name} of {path} differs from PyTorch's by {difference:.3g} for an input of {shape}, "
                f"more than the tolerance of {tolerance:g}"
            )
        largest = max(largest, difference)
    return largest


def _check_native(file: ExportedFile, images: Tensor, path: Path, limit: float) -> float:
    running = file.running(images)
    others = Counter(operator.kind for operator in running if not operator.native)
    share = 1 - sum(others.values()) / max(1, len(running))
    if share < limit:
        listed = ", ".join(f"{count} {kind}" for kind, count in others.most_common())
        raise ExportFailed(
            f"of the operators of {path} {100 * share:.0f} % run natively, less than the limit of "
            f"{100 * limit:.0f} %; the others are {listed}"
        )
    return share


class _SoftmaxCounter(TorchDispatchMode):
    """Counts operators with a softmax in them."""

    count = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.count += is_softmax(str(func))
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def _softmax_calls(model: nn.Module, images: Tensor) -> int:
    with _SoftmaxCounter() as counter:
        model(images)
    return counter.count
