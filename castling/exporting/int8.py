"""Weights and activations in 8 bits: NNCF quantises an OpenVINO file, and a card says what that cost and gave.

Where the metric gets worse by more than is allowed, the layers that matter most go back to floating point.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import interpolate

from castling.exporting.capture import Captured
from castling.exporting.exported import ExportFailed, Runner
from castling.exporting.formats import read_metadata
from castling.exporting.metadata import Metadata
from castling.exporting.openvino import compile_for_cpu, openvino_runner, read_openvino, save_openvino, write_openvino
from castling.exporting.outputs import Form
from castling.exporting.sensitivity import most_sensitive_first
from castling.exporting.verify import Verification, example_inputs, verify
from castling.exporting.write import put_in_place
from castling.extras import import_extra
from castling.measure.latency import time_interleaved
from castling.measure.metric import Metric

logger = logging.getLogger(__name__)

RUNNING_LAYERS = ("FullyConnected", "MatMul", "Convolution")  # what has an 8-bit form, once it is compiled
Validate = Callable[[Runner], Metric]


@dataclass(frozen=True)
class QuantizationCard:
    """What quantisation cost and gave.

    Args:
        path: the file in 8 bits.
        metric_before: the metric of the file in float32.
        metric_after: the same in 8 bits.
        lost: how much worse it is, in the metric's unit of differences; below 0 if it is better.
        max_loss: the limit that it was held against.
        largest_difference: the largest difference of any two outputs, of the file in 8 bits and of PyTorch.
        bytes_before: the size of both files together.
        bytes_after: the same in 8 bits.
        milliseconds_before: the median time of one image, or of a batch where its size is fixed.
        milliseconds_after: the same in 8 bits, taking turns.
        num_layers: the number of matrix products and convolutions.
        kept_in_float: the names of those that run in floating point.
    """

    path: Path
    metric_before: Metric
    metric_after: Metric
    lost: float
    max_loss: float
    largest_difference: float
    bytes_before: int
    bytes_after: int
    milliseconds_before: float
    milliseconds_after: float
    num_layers: int
    kept_in_float: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As plain values; metrics with their names and units."""
        return {**asdict(self), "path": str(self.path)}


@dataclass(frozen=True)
class _Attempt:
    """A model in 8 bits, and how good it is.

    Args:
        model: the OpenVINO model.
        metric: its metric.
        kept: the names of layers that were to stay in floating point.
    """

    model: Any
    metric: Metric
    kept: tuple[str, ...] = ()


def quantize(
    path: Path | str,
    out: Path | str,
    model: nn.Module,
    calibration: Iterable[Tensor],
    validate: Validate,
    max_loss: float = 0.5,
    allow_slower: bool = False,
) -> QuantizationCard:
    """Quantise an exported network to 8 bits, with its metric kept.

    The file is verified as every other is, but for the tolerance: the metric says how far its outputs may be off.

    Args:
        path: an `.xml` file of OpenVINO in float32.
        out: another `.xml` file to write; it keeps the metadata.
        model: the network in PyTorch that the file was made from; left as it is.
        calibration: typical images, in batches `(B, C, H, W)`; 300 pictures are plenty.
        validate: a function that measures a function from images to outputs; the direction of its metric counts.
        max_loss: how much worse the metric may get, in its unit of differences: points for `%`, else its own.
        allow_slower: whether a file is written that takes longer here than the one in float32, for its size alone.

    Raises:
        ExportFailed: if more is lost whatever stays in floating point, 8 bits are no faster on this machine, or the
            file does not do what the network does; then nothing is written.
        ValueError: for another ending, a negative `max_loss`, or no images to calibrate on.
    """
    path, out = Path(path), Path(out)
    if path.suffix != ".xml" or out.suffix != ".xml" or path == out:
        raise ValueError(f"quantisation reads one .xml file and writes another; got {path} and {out}")
    if max_loss < 0:
        raise ValueError(f"max_loss must be at least 0; got {max_loss}")
    images = [batch for batch in calibration if len(batch)]
    if not images:
        raise ValueError("calibration is empty: activations need pictures to find their range")
    metadata = read_metadata(path)
    before = openvino_runner(read_openvino(path), metadata.form)
    metric_before = validate(before)
    found = _within(path, metadata.form, images, validate, metric_before, max_loss)
    example = _example(images, metadata)
    milliseconds: list[float] = []

    def write(beside: Path) -> Verification:
        seen = _write(found, beside, model, images, metadata)
        after = openvino_runner(found.model, metadata.form)
        timings = time_interleaved({"before": partial(before, example), "after": partial(after, example)})
        milliseconds.extend(1e3 * timings[side].median for side in ("before", "after"))
        if milliseconds[1] >= milliseconds[0] and not allow_slower:
            raise ExportFailed(_why_slower(*milliseconds))
        return seen

    seen = put_in_place(out, write)
    layers, in_float = _layers(found.model, example)
    return QuantizationCard(
        path=out,
        metric_before=metric_before,
        metric_after=found.metric,
        lost=metric_before.lost_by(found.metric),
        max_loss=max_loss,
        largest_difference=seen.largest_difference,
        bytes_before=_size(path),
        bytes_after=_size(out),
        milliseconds_before=milliseconds[0],
        milliseconds_after=milliseconds[1],
        num_layers=len(layers),
        kept_in_float=tuple(in_float),
    )


def _why_slower(before: float, after: float) -> str:
    reason = {
        True: "has instructions for 8 bits, but layers this small gain nothing by them",
        False: "has no instructions for 8 bits",
        None: "may have none",
    }[has_8_bit_instructions()]
    return (
        f"8 bits are no faster here: {after:.2f} ms where float32 takes {before:.2f}; this processor {reason}. For a "
        "smaller file all the same: --allow-slower"
    )


def has_8_bit_instructions() -> bool | None:
    """Whether the processor multiplies 8-bit numbers (VNNI, AMX, or Arm's own); None where that is not told."""
    cpuinfo = Path("/proc/cpuinfo")
    flags = set(cpuinfo.read_text().split()) if cpuinfo.exists() else set()
    return bool(flags & {"avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm"}) if flags else None


def _within(
    path: Path, form: Form, images: list[Tensor], validate: Validate, before: Metric, max_loss: float
) -> _Attempt:
    """All in 8 bits if the metric allows it, or else all but the most sensitive layers.

    Raises:
        ExportFailed: if that is not enough whatever stays in floating point.
    """

    def attempt(kept: Sequence[str] = ()) -> _Attempt:
        model = _quantized(read_openvino(path), images, kept)
        return _Attempt(model, validate(openvino_runner(model, form)), tuple(kept))

    found = attempt()
    lost = before.lost_by(found.metric)
    if lost <= max_loss:
        return found
    cost = f"{lost:.4g} {before.difference_unit}".rstrip()
    logger.info("8 bits everywhere cost %s; looking for the layers to keep in float", cost)
    some = images[0][:8]
    places = most_sensitive_first(found.model, openvino_runner(read_openvino(path), form)(some), some, form)
    num_kept = 1
    while num_kept < len(places):
        found = attempt(sorted({name for names in places[:num_kept] for name in names}))
        logger.info("with %d layers in float they cost %.4g", len(found.kept), before.lost_by(found.metric))
        if before.lost_by(found.metric) <= max_loss:
            return found
        last = len(places) - 1
        num_kept = len(places) if num_kept == last else min(2 * num_kept, last)
    raise ExportFailed(
        f"8 bits cost {cost} of {before.name} everywhere, and more than the {max_loss:g} allowed whatever "
        "stays in float"
    )


def _write(found: _Attempt, path: Path, model: nn.Module, images: list[Tensor], metadata: Metadata) -> Verification:
    """Write a model in 8 bits and verify the file."""

    def write_twin(captured: Captured, twin: Path, about: Metadata) -> None:
        in_float = twin.with_name("float.xml")  # the file that is read lies open while the other is written
        write_openvino(captured, in_float, about)
        larger = read_openvino(in_float)
        batch, _, *sides = larger.inputs[0].shape
        save_openvino(_quantized(larger, [interpolate(images[0][:batch], sides)], found.kept), twin)

    save_openvino(found.model, path)
    inputs = example_inputs(_example(images, metadata), metadata.dynamic, metadata.side_step)
    return verify(path, model, inputs, tolerance=math.inf, write=write_twin)


def _example(images: list[Tensor], metadata: Metadata) -> Tensor:
    """The smallest input of these that the file takes."""
    return images[0][:1] if "batch" in metadata.dynamic else images[0]


def _quantized(model: Any, images: list[Tensor], kept: Sequence[str] = ()) -> Any:
    nncf = import_extra("nncf", "export")
    with _quiet():
        return nncf.quantize(
            model,
            nncf.Dataset(images, lambda batch: batch.numpy()),
            model_type=nncf.ModelType.TRANSFORMER,  # keeps normalisations and softmax in floating point
            subset_size=len(images),
            ignored_scope=nncf.IgnoredScope(names=list(kept), validate=False),
        )


def _layers(model: Any, images: Tensor) -> tuple[list[str], list[str]]:
    """Names of all matrix products and convolutions, and of those that run in floating point for these images."""
    model = model.clone()
    model.reshape(list(images.shape))  # engines choose the precision of a layer when they know its shape
    compiled = compile_for_cpu(model)
    running = compiled.get_runtime_model()  # what is read below points into it
    facts = [
        [str(node.rt_info[key].astype(str)) for key in ("layerType", "originalLayersNames", "runtimePrecision")]
        for node in running.get_ordered_ops()
    ]
    layers = [(names.partition(",")[0], precision) for kind, names, precision in facts if kind in RUNNING_LAYERS]
    return [name for name, _ in layers], [name for name, precision in layers if precision not in ("i8", "u8")]


def _size(path: Path) -> int:
    return sum(path.with_suffix(suffix).stat().st_size for suffix in (".xml", ".bin"))


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep NNCF's own notes out of the log."""
    import_extra("nncf", "export")
    log = logging.getLogger("nncf")
    level = log.level
    try:
        log.setLevel(logging.ERROR)
        yield
    finally:
        log.setLevel(level)
