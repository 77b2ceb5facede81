"""OpenVINO's `.xml` files with their `.bin`, and the runtime that runs them on the CPU.

Networks come in through torch.export: it takes every family, keeps fused softmax attention whole, and folds the
explicit one of MViTv2, which a trace of TorchScript leaves in pieces.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from castling.exporting.capture import Captured, size_oblivious
from castling.exporting.exported import ExportedFile, Runner, RunningOperator, quadratic_shapes
from castling.exporting.metadata import KEY, Metadata, parse_metadata
from castling.exporting.outputs import Form, filled, form_by_name, names_in
from castling.extras import import_extra
from castling.measure.trees import Tree
from castling.sentences import one_line

Precision = Literal["f32", "bf16"]
NO_OPERATORS = ("Constant", "Parameter", "Result")


def write_openvino(captured: Captured, path: Path, metadata: Metadata) -> None:
    """Write an `.xml` file and its `.bin`, in float32."""
    model = to_openvino(captured)
    model.set_rt_info(metadata.to_json(), KEY)
    save_openvino(model, path)


def save_openvino(model: Any, path: Path) -> None:
    """Write an OpenVINO model as it is: by itself the library would halve the precision of the weights."""
    import_extra("openvino", "export").save_model(model, path, compress_to_fp16=False)


def to_openvino(captured: Captured) -> Any:
    """A captured network as an OpenVINO model, with one input `image` and the outputs of its form."""
    openvino = import_extra("openvino", "export")
    pytorch = import_extra("openvino.frontend.pytorch", "export")
    rules = {
        "prims.copy_strided.default": _same,
        "aten._upsample_bicubic2d_aa.default": _bicubic,
        "torchvision.nms.default": _nms,
    }
    with size_oblivious():
        extensions = [pytorch.ConversionExtension(name, rule) for name, rule in rules.items()]
        model = openvino.convert_model(captured.program, extension=extensions)
    model.inputs[0].set_names({"image"})
    # The frontend leaves sides free that the graph does not.
    model.reshape([-1 if size is None else size for size in captured.input_shape])
    for output, name in zip(model.outputs, names_in(captured.form), strict=True):
        output.set_names({name})
    return model


def open_openvino(path: Path) -> ExportedFile:
    """Open an `.xml` file; it runs in OpenVINO.

    Counted are the layers that the plugin of the CPU executes when it knows the size of the images, as its profile
    lists them: views and what was joined to a neighbour do not run. Native are those with code for the processor; not
    native are those of the plain loops that OpenVINO calls reference.
    """
    model = read_openvino(path)
    return ExportedFile(
        run=openvino_runner(model, _form(model)),
        operators=Counter(kind for node in model.get_ops() if (kind := node.get_type_name()) not in NO_OPERATORS),
        running=lambda images: _running(read_openvino(path), images),
        quadratic=lambda images, num_tokens: _quadratic(read_openvino(path), images, num_tokens),
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
    """The OpenVINO model of an `.xml` file.

    Raises:
        ValueError: if it is none, or damaged.
    """
    try:
        return openvino_core().read_model(path)
    except RuntimeError as error:
        raise ValueError(f"{path} is no file of OpenVINO's, or damaged: {one_line(error)}") from error


def read_openvino_metadata(path: Path) -> str:
    """The metadata of an `.xml` file as text, empty where there is none."""
    return _metadata(read_openvino(path))


def openvino_runner(model: Any, form: Form = None, threads: int | None = None, precision: Precision = "f32") -> Runner:
    """A model that runs in OpenVINO on the CPU; images are read where they lie.

    Args:
        model: an OpenVINO model.
        form: the tree of its outputs; by default a mapping by name, or a lone tensor.
        threads: the number of threads; by default as many as torch has.
        precision: what it computes in; inputs and outputs are float32 in either.

    Raises:
        ValueError: for bfloat16 on a processor without instructions for it.
    """
    openvino = import_extra("openvino", "export")
    form = form or form_by_name([output.get_any_name() for output in model.outputs])
    request = compile_for_cpu(model, threads, precision=precision).create_infer_request()

    def run(images: Tensor) -> Tree:
        shared = openvino.Tensor(images.contiguous().numpy(), shared_memory=True)
        found = request.infer([shared], share_inputs=True, share_outputs=True).to_tuple()
        return filled(form, (torch.from_numpy(array).clone() for array in found))  # the next call writes over them

    return run


def compile_for_cpu(model: Any, threads: int | None = None, profile: bool = False, precision: Precision = "f32") -> Any:
    """Compile for one image after the other as fast as it can be.

    Args:
        model: an OpenVINO model.
        threads: the number of threads; by default as many as torch has.
        profile: whether the time of every layer is taken.
        precision: what it computes in.

    Raises:
        ValueError: for bfloat16 on a processor without instructions for it.
    """
    if precision == "bf16" and "BF16" not in openvino_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        raise ValueError("this processor has no instructions for bfloat16 (AVX-512 BF16 or AMX): choose openvino")
    settings = {
        "INFERENCE_PRECISION_HINT": precision,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads or torch.get_num_threads(),
        "PERF_COUNT": profile,
    }
    return openvino_core().compile_model(model, "CPU", settings)


def _metadata(model: Any) -> str:
    return str(model.get_rt_info(KEY).astype(str)) if model.has_rt_info(KEY) else ""


def _form(model: Any) -> Form:
    text = _metadata(model)
    return parse_metadata(text).form if text else None


def _running(model: Any, images: Tensor) -> list[RunningOperator]:
    """The layers that are executed for these images; the profile names the code of each, such as `jit_avx512_f32`."""
    model.reshape(list(images.shape))
    request = compile_for_cpu(model, profile=True).create_infer_request()
    request.infer([images.contiguous().numpy()])
    executed = [layer for layer in request.profiling_info if layer.status == layer.Status.EXECUTED]
    return [RunningOperator(layer.node_type, not layer.exec_type.startswith("ref")) for layer in executed]


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


def _nms(node: Any) -> Any:
    """Non-maximum suppression, for which OpenVINO has an operator but no rule; it gives (picture, class, box)."""
    operators = import_extra("openvino.opset13", "export")
    boxes, scores, overlap = (node.get_input(place) for place in range(3))
    found = operators.non_max_suppression(
        operators.unsqueeze(boxes, operators.constant(0)),
        operators.unsqueeze(scores, operators.constant([0, 1])),
        operators.constant(2**31 - 1, dtype="int64"),
        overlap,
        box_encoding="corner",
        sort_result_descending=True,
        output_type="i64",
    )
    last = operators.gather(found.output(0), operators.constant(2), operators.constant(1))
    return last.outputs()
