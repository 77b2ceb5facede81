"""The proof that a file computes what the network computes, and as cheaply.

Outputs are compared over several batches and sizes, and what the network does without, a softmax or a tensor of N x N,
the file must do without as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from castling.export.exported import ExportedFile, is_softmax
from castling.export.formats import open_export, read_metadata
from castling.export.metadata import Metadata
from castling.measure.quadratic import quadratic_tensors


class ExportFailed(ValueError):
    """A file that was written does not do what the network does."""


@dataclass(frozen=True)
class Verification:
    """What was seen.

    Args:
        path: of the file.
        largest_difference: of any two outputs, of the file and of PyTorch.
        tolerance: that it was held against.
        shapes: of the inputs.
        dynamic: axes of the input whose length is free.
        num_softmax: operators that are a softmax or have one inside.
        quadratic: operators with a result of N x N; none is the proof. None where the size of the input is fixed and
            too small to tell tokens from channels.
        num_tokens: the N at which was looked for them.
        operators: how many there are of each type.
        native_share: share of them that the engine runs by itself.
    """

    path: Path
    largest_difference: float
    tolerance: float
    shapes: tuple[tuple[int, ...], ...]
    dynamic: tuple[str, ...]
    num_softmax: int
    quadratic: tuple[str, ...] | None
    num_tokens: int | None
    operators: dict[str, int]
    native_share: float

    @property
    def num_operators(self) -> int:
        """Operators of all types."""
        return sum(self.operators.values())


def verify(path: Path | str, model: nn.Module, inputs: Sequence[Tensor], tolerance: float = 1e-4) -> Verification:
    """Compare a file with the network that it was made from.

    Args:
        path: an exported file.
        model: the network in PyTorch; left as it is.
        inputs: images `(B, C, H, W)` of every shape to compare at.
        tolerance: largest difference of two outputs.

    Raises:
        ExportFailed: names what differs.
        ValueError: without inputs, or for a file that is not there or has no metadata.
    """
    if not inputs:
        raise ValueError("inputs is empty: there is nothing to compare on")
    file, metadata = open_export(path), read_metadata(path)
    was_training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        largest = max(_difference(file, model, images, Path(path), tolerance) for images in inputs)
        num_softmax = sum(count for name, count in file.operators.items() if is_softmax(name))
        if num_softmax and not _softmax_calls(model, inputs[0]):
            raise ExportFailed(f"{path} has {num_softmax} softmax operators; the network in PyTorch has none")
        probe = _probe(model, inputs[0], metadata)
        quadratic = None if probe is None else _check_quadratic(file, model, *probe, Path(path))
    finally:
        for module in was_training:
            module.training = True
    return Verification(
        path=Path(path),
        largest_difference=largest,
        tolerance=tolerance,
        shapes=tuple(tuple(images.shape) for images in inputs),
        dynamic=metadata.dynamic,
        num_softmax=num_softmax,
        quadratic=quadratic,
        num_tokens=None if probe is None else probe[1],
        operators=dict(file.operators.most_common()),
        native_share=file.native / max(1, sum(file.operators.values())),
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
        wanted = model(images)
    try:
        found = file.run(images)
    except Exception as error:  # each engine raises its own
        raise ExportFailed(f"{path} does not run for an input of {shape}: {error}") from error
    if found.shape != wanted.shape:
        raise ExportFailed(f"{path} gives {tuple(found.shape)} for an input of {shape}, PyTorch {tuple(wanted.shape)}")
    difference = float((found - wanted).abs().max())
    if not difference <= tolerance:  # nor if it is no number
        raise ExportFailed(
            f"the outputs of {path} differ from PyTorch's by {difference:.3g} for an input of {shape}, "
            f"more than the tolerance of {tolerance:g}"
        )
    return difference


def _probe(model: nn.Module, images: Tensor, metadata: Metadata) -> tuple[Tensor, int] | None:
    """An image, and its N, that exceeds every width of the network and every side of the image.

    Only then is a result with two axes of N an attention map, and not a weight or a picture. None where the size is
    fixed and does not do.
    """
    if metadata.dynamic and "batch" in metadata.dynamic:
        images = images[:1]
    widest = max(max(parameter.shape, default=0) for parameter in model.state_dict().values())
    free = {"height", "width"} <= set(metadata.dynamic)
    num_patches = max(1, _num_tokens(model, images) - 1)  # one of them may be a class token, which does not grow
    factor = 1
    while num_patches * factor**2 <= max(widest, factor * max(images.shape[-2:])):
        if not free:
            return None
        factor *= 2
    return torch.zeros(*images.shape[:2], *(factor * side for side in images.shape[-2:])), num_patches * factor**2


@torch.no_grad()
def _num_tokens(model: nn.Module, images: Tensor) -> int:
    """The longest sequence that a linear layer of the network sees."""
    lengths = [1]
    hooks = [
        module.register_forward_pre_hook(lambda _, inputs: lengths.append(inputs[0].shape[:-1].numel()))
        for module in model.modules()
        if isinstance(module, nn.Linear)
    ]
    try:
        model(images)
    finally:
        for hook in hooks:
            hook.remove()
    return max(lengths) // len(images)


@torch.no_grad()
def _check_quadratic(
    file: ExportedFile, model: nn.Module, images: Tensor, num_tokens: int, path: Path
) -> tuple[str, ...]:
    found = file.quadratic(images, num_tokens)
    if found and not quadratic_tensors(lambda: model(images), num_tokens):
        raise ExportFailed(f"{path} makes an N x N tensor that the network in PyTorch does not: {found[0]}")
    return tuple(found)


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
