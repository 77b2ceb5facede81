"""ONNX files, and ONNX Runtime that runs them on the CPU."""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from castling.export.capture import AXES, Captured, size_oblivious
from castling.export.exported import ExportedFile, quadratic_shapes
from castling.export.metadata import KEY, Metadata
from castling.extras import import_extra

STANDARD = ("", "ai.onnx")  # both are names of the standard domain


def write_onnx(captured: Captured, path: Path, metadata: Metadata) -> None:
    """Write an `.onnx` file, weights included."""
    onnx = import_extra("onnx", "export")
    proto = to_onnx(captured.program)
    axes = proto.graph.input[0].type.tensor_type.shape.dim
    for axis, label in AXES.items():
        if label in captured.dynamic:
            axes[axis].dim_param = label  # instead of the tracer's own name
    onnx.helper.set_model_props(proto, {KEY: metadata.to_json()})
    onnx.save(proto, path)


def to_onnx(program: ExportedProgram) -> Any:
    """A captured network as an ONNX model, with one input `image` and one output `output`."""
    import_extra("onnxscript", "export")
    with _quiet(), size_oblivious():
        found = torch.onnx.export(program, dynamo=True, input_names=["image"], output_names=["output"], verbose=False)
    assert found is not None
    return found.model_proto


def open_onnx(path: Path) -> ExportedFile:
    """Open an `.onnx` file; it runs in ONNX Runtime."""
    onnx = import_extra("onnx", "export")
    proto = onnx.load(path)
    operators = Counter(node.op_type for node in proto.graph.node)
    native = sum(node.domain in STANDARD for node in proto.graph.node)
    return ExportedFile(onnx_runner(path.read_bytes()), operators, native, lambda x, n: _quadratic(proto, x, n))


def read_onnx_metadata(path: Path) -> str:
    """The metadata of an `.onnx` file as text, empty where there is none."""
    onnx = import_extra("onnx", "export")
    proto = onnx.load(path, load_external_data=False)
    return next((prop.value for prop in proto.metadata_props if prop.key == KEY), "")


def onnx_runner(content: bytes, threads: int | None = None) -> Callable[[Tensor], Tensor]:
    """A model that runs in ONNX Runtime on the CPU; images are read where they lie.

    Args:
        content: of an ONNX file.
        threads: by default as many as torch has.
    """
    session = onnx_session(content, threads)
    [name], [output] = session.get_inputs(), session.get_outputs()

    def run(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run([output.name], {name.name: images.contiguous().numpy()})[0])

    return run


def onnx_session(content: bytes | str, threads: int | None = None) -> Any:
    """A session of ONNX Runtime on the CPU, for the content of a file or its path."""
    runtime = import_extra("onnxruntime", "export")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads or torch.get_num_threads()
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


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
