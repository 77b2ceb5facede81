"""One door to every engine: a network and an example go in, a function from images to outputs comes out.

All run on the CPU, in float32 unless their name says otherwise, for images of the example's shape, with the same number
of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from castling.config import check_choice
from castling.exporting.capture import capture
from castling.exporting.exported import Runner
from castling.exporting.onnx import onnx_runner, to_onnx
from castling.exporting.openvino import Precision, openvino_runner, to_openvino
from castling.measure.heap import keep_heap
from castling.measure.trees import Tree

EngineName = Literal["eager", "compile", "openvino", "openvino_bf16", "onnxruntime"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)
OPENVINO: dict[str, Precision] = {"openvino": "f32", "openvino_bf16": "bf16"}


def on_engine(model: nn.Module, example: Tensor, engine: EngineName | str, threads: int | None = None) -> Runner:
    """Put a network on an engine.

    Args:
        model: any network from images to a tree of tensors, castled, folded or plain; put into evaluation mode.
        example: an input `(B, C, H, W)`; the engine runs inputs of this shape.
        engine: `eager` (torch), `compile` (torch.compile with weights frozen into the code), `openvino`,
            `openvino_bf16` (in bfloat16 where it can, with outputs that differ in the third digit) or `onnxruntime`.
        threads: the number of threads; by default as many as torch has.

    Returns:
        A function from images to the outputs, a tree of the network's form. It is compiled when this returns.

    Raises:
        ExportFailed: if the network cannot be captured for OpenVINO or ONNX Runtime.
        ValueError: for an unknown engine, fewer than one thread, or bfloat16 on a processor that lacks it.

    Example:
        >>> run = on_engine(nn.Conv2d(3, 4, 3), torch.zeros(1, 3, 8, 8), "eager")
        >>> run(torch.zeros(1, 3, 8, 8)).shape
        torch.Size([1, 4, 6, 6])
    """
    check_choice("engine", engine, ENGINES)
    if threads is not None and threads < 1:
        raise ValueError(f"threads must be at least 1; got {threads}")
    keep_heap()
    model.eval()
    if engine == "eager":
        return _in_torch(model, threads)
    if engine == "compile":
        return _compiled(model, example, threads)
    captured = capture(model, example, dynamic=False)
    if engine in OPENVINO:
        return openvino_runner(to_openvino(captured), captured.form, threads, OPENVINO[engine])
    return onnx_runner(to_onnx(captured).SerializeToString(), captured.form, threads)


def _in_torch(network: Callable[[Tensor], Tree], threads: int | None) -> Runner:
    def run(images: Tensor) -> Tree:
        with torch.inference_mode(), _threads(threads):
            return network(images)

    return run


def _compiled(model: nn.Module, example: Tensor, threads: int | None) -> Runner:
    from torch._dynamo import config as dynamo_config  # takes a second to import
    from torch._inductor import config as inductor_config

    compiled = torch.compile(model, fullgraph=True, dynamic=False)
    run = _in_torch(compiled, threads)
    # Several networks of one class share their code, and each is compiled for itself. Freezing, as an option of
    # torch.compile, would come too late: the graph is captured before, with weights as inputs, and none is packed.
    limits = dynamo_config.patch(recompile_limit=1000, accumulated_recompile_limit=1000)
    with limits, inductor_config.patch(freezing=True):
        run(example)
    return run


@contextmanager
def _threads(threads: int | None) -> Iterator[None]:
    """So many threads for a moment."""
    before = torch.get_num_threads()
    if threads is None or threads == before:
        yield
        return
    try:
        torch.set_num_threads(threads)
        yield
    finally:
        torch.set_num_threads(before)
