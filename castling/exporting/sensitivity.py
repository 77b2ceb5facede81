"""Which layers of a quantised network matter most: those whose inputs, put back to floating point, mend the outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from castling.exporting.openvino import openvino_runner
from castling.exporting.outputs import Form
from castling.measure.trees import Tree, absolute_differences, named_leaves

LAYERS = ("MatMul", "Convolution", "GroupConvolution")  # what has an 8-bit form
MOVERS = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Split", "VariadicSplit", "Slice", "StridedSlice", "Gather")


def most_sensitive_first(
    quantized: Any, wanted: Tree, images: Tensor, form: Form, on_step: Callable[[], None] = lambda: None
) -> list[list[str]]:
    """Rank the places where activations are quantised.

    Args:
        quantized: an OpenVINO model with quantised activations.
        wanted: the tree of outputs in floating point.
        images: the images `(B, C, H, W)` that they are for.
        form: the tree of the outputs' names.
        on_step: a function that is called after each place.

    Returns:
        For each place the names of the layers that it feeds; the place whose removal helps most comes first.
    """
    errors: list[tuple[float, list[str]]] = []
    for node in quantized.get_ordered_ops():
        layers = [layer.get_friendly_name() for layer in _fed_by(node)] if _is_quantizer(node) else []
        if layers:
            found = openvino_runner(_without(quantized, node.get_friendly_name()), form)(images)
            errors.append((_relative_error(found, wanted), layers))
            on_step()
    return [layers for _, layers in sorted(errors, key=lambda pair: pair[0])]


def _relative_error(found: Tree, wanted: Tree) -> float:
    """The mean difference of each output over its mean size, summed: outputs in other units count the same."""
    ours, theirs = named_leaves(found), named_leaves(wanted)
    return sum(
        float(absolute_differences(ours[name], tensor).mean() / tensor.float().abs().mean().clamp_min(1e-12))
        for name, tensor in theirs.items()
        if tensor.numel()
    )


def _is_quantizer(node: Any) -> bool:
    return node.get_type_name() == "FakeQuantize" and node.input_value(0).get_node().get_type_name() != "Constant"


def _fed_by(node: Any) -> Iterator[Any]:
    """The layers that read a result, past operators that only move it."""
    for output in node.outputs():
        for target in output.get_target_inputs():
            reader = target.get_node()
            if reader.get_type_name() in LAYERS:
                yield reader
            elif reader.get_type_name() in MOVERS:
                yield from _fed_by(reader)


def _without(quantized: Any, name: str) -> Any:
    """A copy in which one result is not quantised."""
    model = quantized.clone()
    [quantizer] = [node for node in model.get_ops() if node.get_friendly_name() == name]
    for target in quantizer.output(0).get_target_inputs():
        target.replace_source_output(quantizer.input_value(0))
    return model
