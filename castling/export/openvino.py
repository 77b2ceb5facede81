"""OpenVINO's `.xml` files with their `.bin`, and the runtime that runs them on the CPU.

Networks come in through torch.export: it takes every family, keeps fused softmax attention whole, and folds the
explicit one of MViTv2, which a trace of TorchScript leaves in pieces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from castling.export.capture import Captured, size_oblivious
from castling.export.exported import ExportedFile, quadratic_shapes
from castling.export.metadata import KEY, Metadata
from castling.extras import import_extra

NO_OPERATORS = ("Constant", "Parameter", "Result")


def write_openvino(captured: Captured, path: Path, metadata: Metadata) -> None:
    """Write an `.xml` file and its `.bin`, in float32."""
    model = to_openvino(captured.program)
    model.set_rt_info(metadata.to_json(), KEY)
    save_openvino(model, path)


def save_openvino(model: Any, path: Path) -> None:
    """Write an OpenVINO model as it is: by itself the library would halve the precision of the weights."""
    import_extra("openvino", "export").save_model(model, path, compress_to_fp16=False)


def to_openvino(program: ExportedProgram) -> Any:
    """A captured network as an OpenVINO model, with one input `image` and one output `output`."""
    openvino = import_extra("openvino", "export")
    pytorch = import_extra("openvino.frontend.pytorch", "export")
    rules = {"prims.copy_strided.default": _same, "aten._upsample_bicubic2d_aa.default": _bicubic}
    with size_oblivious():
        extensions = [pytorch.ConversionExtension(name, rule) for name, rule in rules.items()]
        model = openvino.convert_model(program, extension=extensions)
    model.inputs[0].set_names({"image"})
    model.outputs[0].set_names({"output"})
    return model


def open_openvino(path: Path) -> ExportedFile:
    """Open an `.xml` file; it runs in OpenVINO, which runs all that it compiles by itself."""
    model = read_openvino(path)
    operators = Counter(kind for node in model.get_ops() if (kind := node.get_type_name()) not in NO_OPERATORS)
    return ExportedFile(
        openvino_runner(model), operators, sum(operators.values()), lambda x, n: _quadratic(read_openvino(path), x, n)
    )


@cache
def openvino_core() -> Any:
    """The one OpenVINO runtime of this process.

    Each has a stack for signals and puts back the one before when it goes: of two that do not go in reverse order the
    process is left with freed memory for a stack, and the next signal breaks it.
    """
    core = import_extra("openvino", "export").Core()
    core.get_versions("CPU")  # loads the plugin that owns that stack before anybody else's
    return core


def read_openvino(path: Path) -> Any:
    """The OpenVINO model of an `.xml` file."""
    return openvino_core().read_model(path)


def read_openvino_metadata(path: Path) -> str:
    """The metadata of an `.xml` file as text, empty where there is none."""
    model = read_openvino(path)
    return str(model.get_rt_info(KEY).astype(str)) if model.has_rt_info(KEY) else ""


def openvino_runner(model: Any, threads: int | None = None) -> Callable[[Tensor], Tensor]:
    """A model that runs in OpenVINO on the CPU, in float32; images are read where they lie.

    Args:
        model: an OpenVINO model.
        threads: by default as many as torch has.
    """
    openvino = import_extra("openvino", "export")
    request = compile_for_cpu(model, threads).create_infer_request()

    def run(images: Tensor) -> Tensor:
        shared = openvino.Tensor(images.contiguous().numpy(), shared_memory=True)
        found = request.infer([shared], share_inputs=True, share_outputs=True)[0]
        return torch.from_numpy(found).clone()  # the next call writes over what it returned

    return run


def compile_for_cpu(model: Any, threads: int | None = None) -> Any:
    """Compile for one image after the other as fast as it can be, in float32."""
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads or torch.get_num_threads(),
    }
    return openvino_core().compile_model(model, "CPU", settings)


def _quadratic(model: Any, images: Tensor, num_tokens: int) -> list[str]:
    """Results with two axes of at least N, by OpenVINO's own inference of shapes."""
    model.reshape(list(images.shape))
    shapes = [
        (node.get_type_name(), tuple(output.get_partial_shape().get_max_shape()))
        for node in model.get_ops()
        if node.get_type_name() not in NO_OPERATORS
        for output in node.outputs()
    ]
    return quadratic_shapes(shapes, num_tokens)


def _same(node: Any) -> Any:
    """A copy into other strides: engines lay out by themselves."""
    return [node.get_input(0)]


def _bicubic(node: Any) -> Any:
    """The antialiased resampling of position embeddings, for which OpenVINO has an operator but no rule."""
    operators = import_extra("openvino.opset13", "export")
    resampled = operators.interpolate(
        node.get_input(0),
        operators.convert(node.get_input(1), "i32"),
        mode="bicubic_pillow",
        shape_calculation_mode="sizes",
        coordinate_transformation_mode="half_pixel",
        cube_coeff=-0.5,
        axes=operators.constant([2, 3], dtype="int32"),
    )
    return resampled.outputs()
