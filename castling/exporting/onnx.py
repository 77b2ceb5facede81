"""ONNX files, and ONNX Runtime that runs them on the CPU."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from castling.exporting.capture import AXES, Captured, size_oblivious
from castling.exporting.exported import ExportedFile, Runner, RunningOperator, quadratic_shapes
from castling.exporting.metadata import KEY, Metadata, parse_metadata
from castling.exporting.outputs import Form, filled, form_by_name, names_in
from castling.extras import import_extra
from castling.measure.trees import Tree
from castling.sentences import one_line


def write_onnx(captured: Captured, path: Path, metadata: Metadata) -> None:
    """Write an `.onnx` file, weights included."""
    onnx = import_extra("onnx", "export")
    proto = to_onnx(captured)
    axes = proto.graph.input[0].type.tensor_type.shape.dim
    for axis, label in AXES.items():
        if label in captured.dynamic:
            axes[axis].dim_param = label  # instead of the tracer's own name
    onnx.helper.set_model_props(proto, {KEY: metadata.to_json()})
    onnx.save(proto, path)


def to_onnx(captured: Captured) -> Any:
    """A captured network as an ONNX model, with one input `image` and the outputs of its form."""
    import_extra("onnxscript", "export")
    with _quiet(), size_oblivious():
        found = torch.onnx.export(
            captured.program,
            dynamo=True,
            input_names=["image"],
            output_names=list(names_in(captured.form)),
            verbose=False,
        )
    assert found is not None
    return found.model_proto


def open_onnx(path: Path) -> ExportedFile:
    """Open an `.onnx` file; it runs in ONNX Runtime.

    Native are operators that the runtime has a kernel for; not native are those that it can only spell out in others,
    as the standard defines them.
    """
    proto, content = _load(path), path.read_bytes()
    about = _metadata(proto)
    return ExportedFile(
        run=onnx_runner(content, parse_metadata(about).form if about else None),
        operators=Counter(node.op_type for node in _operators(proto)),
        running=lambda images: _running(proto, content),
        quadratic=lambda images, num_tokens: _quadratic(proto, images, num_tokens),
    )


def read_onnx_metadata(path: Path) -> str:
    """The metadata of an `.onnx` file as text, empty where there is none."""
    return _metadata(_load(path, weights=False))


def onnx_runner(content: bytes, form: Form = None, threads: int | None = None) -> Runner:
    """A model that runs in ONNX Runtime on the CPU; images are read where they lie.

    Args:
        content: the bytes of an ONNX file.
        form: the tree of its outputs; by default a mapping by name, or a lone tensor.
        threads: the number of threads; by default as many as torch has.
    """
    session = onnx_session(content, threads)
    [name] = session.get_inputs()
    form = form or form_by_name([output.name for output in session.get_outputs()])

    def run(images: Tensor) -> Tree:
        return filled(form, map(torch.from_numpy, session.run(None, {name.name: images.contiguous().numpy()})))

    return run


def onnx_session(content: bytes | str, threads: int | None = None) -> Any:
    """A session of ONNX Runtime on the CPU, for the content of a file or its path."""
    runtime = import_extra("onnxruntime", "export")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads or torch.get_num_threads()
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _load(path: Path, weights: bool = True) -> Any:
    """An ONNX file, with the weights that it keeps in files beside it."""
    onnx = import_extra("onnx", "export")
    damaged = (import_extra("google.protobuf.message", "export").DecodeError, UnicodeDecodeError)
    try:
        return onnx.load(path, load_external_data=weights)
    except (*damaged, onnx.checker.ValidationError) as error:
        raise ValueError(f"{path} is no ONNX file, or damaged: {one_line(error)}") from error


def _metadata(proto: Any) -> str:
    return next((prop.value for prop in proto.metadata_props if prop.key == KEY), "")


def _operators(proto: Any) -> list[Any]:
    return [node for node in proto.graph.node if node.op_type != "Constant"]


def _running(proto: Any, content: bytes) -> list[RunningOperator]:
    """The operators of a file, and whether they are still whole in the graph of a session that fuses nothing."""
    onnx, runtime = import_extra("onnx", "export"), import_extra("onnxruntime", "export")
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = f"{folder}/session.onnx"
        runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        session = onnx.load(options.optimized_model_filepath)
    whole = {(node.op_type, node.output[0]) for node in session.graph.node}
    return [RunningOperator(node.op_type, (node.op_type, node.output[0]) in whole) for node in _operators(proto)]


def _quadratic(proto: Any, images: Tensor, num_tokens: int) -> list[str]:
    """Results with two axes of at least N, as they are when the graph runs: beside every result its shape is asked for.

    The results themselves are freed on the way, so that a large picture fits into memory.
    """
    onnx = import_extra("onnx", "export")
    probed = onnx.ModelProto()
    probed.CopyFrom(proto)
    del probed.graph.output[:]
    makers = {name: node.op_type for node in proto.graph.node for name in node.output if name}
    for place, name in enumerate(makers):
        probed.graph.node.append(onnx.helper.make_node("Shape", [name], [f"shape_{place}"]))
        probed.graph.output.append(onnx.helper.make_tensor_value_info(f"shape_{place}", onnx.TensorProto.INT64, None))
    session = onnx_session(probed.SerializeToString(), None)
    shapes = session.run(None, {session.get_inputs()[0].name: images.contiguous().numpy()})
    named = zip(makers.values(), (tuple(map(int, shape)) for shape in shapes), strict=True)
    return quadratic_shapes(named, num_tokens)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's own notes, which are for its makers, out of the log."""
    names = ("torch.onnx", "onnxscript", "onnx_ir")
    levels = {name: logging.getLogger(name).level for name in names}
    try:
        for name in names:
            logging.getLogger(name).setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
