"""Weights and activations in 8 bits: NNCF quantises an OpenVINO file, and a card says what that cost and gave.

Where accuracy falls by more than is allowed, the layers that matter most go back to floating point.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from castling.export.openvino import compile_for_cpu, openvino_runner, read_openvino, save_openvino
from castling.export.sensitivity import most_sensitive_first
from castling.export.verify import ExportFailed
from castling.extras import import_extra
from castling.measure.latency import time_interleaved

logger = logging.getLogger(__name__)

Runner = Callable[[Tensor], Tensor]
RUNNING_LAYERS = ("FullyConnected", "MatMul", "Convolution")  # what has an 8-bit form, once it is compiled


@dataclass(frozen=True)
class QuantizationCard:
    """What quantisation cost and gave.

    Args:
        path: of the file in 8 bits.
        accuracy_before: of the file in float32, a share.
        accuracy_after: of the file in 8 bits.
        drop: percentage points lost.
        max_drop: percentage points that were allowed.
        bytes_before: size of both files together.
        bytes_after: the same in 8 bits.
        milliseconds_before: median time of one image.
        milliseconds_after: the same in 8 bits, taking turns.
        num_layers: matrix products and convolutions.
        kept_in_float: names of those that run in floating point.
    """

    path: Path
    accuracy_before: float
    accuracy_after: float
    drop: float
    max_drop: float
    bytes_before: int
    bytes_after: int
    milliseconds_before: float
    milliseconds_after: float
    num_layers: int
    kept_in_float: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {**asdict(self), "path": str(self.path)}


def quantize(
    path: Path | str,
    out: Path | str,
    calibration: Iterable[Tensor],
    validate: Callable[[Runner], float],
    max_drop: float = 0.5,
) -> QuantizationCard:
    """Quantise an exported network to 8 bits, with accuracy kept.

    Args:
        path: an `.xml` file of OpenVINO in float32.
        out: another `.xml` file to write; it keeps the metadata.
        calibration: typical images, in batches `(B, C, H, W)`; 300 pictures are plenty.
        validate: measures a function from images to outputs, as a share of right answers.
        max_drop: percentage points of it that may be lost.

    Raises:
        ExportFailed: if more is lost whatever stays in floating point; then nothing is written.
        ValueError: for another ending, a negative `max_drop`, or no images to calibrate on.
    """
    path, out = Path(path), Path(out)
    if path.suffix != ".xml" or out.suffix != ".xml" or path == out:
        raise ValueError(f"quantisation reads one .xml file and writes another; got {path} and {out}")
    if max_drop < 0:
        raise ValueError(f"max_drop must be at least 0; got {max_drop}")
    images = [batch for batch in calibration if len(batch)]
    if not images:
        raise ValueError("calibration is empty: activations need pictures to find their range")
    before = openvino_runner(read_openvino(path))
    accuracy_before = validate(before)
    quantized, accuracy_after = _within(path, images, validate, accuracy_before, max_drop)
    _replace(quantized, out)
    image, after = images[0][:1], openvino_runner(read_openvino(out))
    timings = time_interleaved({"before": partial(before, image), "after": partial(after, image)})
    layers, in_float = _layers(quantized, image)
    return QuantizationCard(
        path=out,
        accuracy_before=accuracy_before,
        accuracy_after=accuracy_after,
        drop=100 * (accuracy_before - accuracy_after),
        max_drop=max_drop,
        bytes_before=_size(path),
        bytes_after=_size(out),
        milliseconds_before=1e3 * timings["before"].median,
        milliseconds_after=1e3 * timings["after"].median,
        num_layers=len(layers),
        kept_in_float=tuple(in_float),
    )


def _within(
    path: Path, images: list[Tensor], validate: Callable[[Runner], float], accuracy_before: float, max_drop: float
) -> tuple[Any, float]:
    """All in 8 bits if accuracy allows it, or else all but the most sensitive layers; with the accuracy.

    Raises:
        ExportFailed: if that is not enough whatever stays in floating point.
    """
    quantized = _quantized(path, images)
    accuracy = validate(openvino_runner(quantized))
    lost = 100 * (accuracy_before - accuracy)
    if lost <= max_drop:
        return quantized, accuracy
    logger.info("8 bits everywhere cost %.2f points; looking for the layers to keep in float", lost)
    some = images[0][:8]
    places = most_sensitive_first(quantized, openvino_runner(read_openvino(path))(some), some)
    num_kept = 1
    while num_kept < len(places):
        kept = sorted({name for names in places[:num_kept] for name in names})
        quantized = _quantized(path, images, kept)
        accuracy = validate(openvino_runner(quantized))
        logger.info("with %d layers in float they cost %.2f", len(kept), 100 * (accuracy_before - accuracy))
        if 100 * (accuracy_before - accuracy) <= max_drop:
            return quantized, accuracy
        num_kept *= 2
    raise ExportFailed(
        f"8 bits cost {lost:.2f} points everywhere, and more than the {max_drop:g} allowed whatever stays in float"
    )


def _quantized(path: Path, images: list[Tensor], kept: Sequence[str] = ()) -> Any:
    nncf = import_extra("nncf", "export")
    with _quiet():
        return nncf.quantize(
            read_openvino(path),
            nncf.Dataset(images, lambda batch: batch.numpy()),
            model_type=nncf.ModelType.TRANSFORMER,  # keeps normalisations and softmax in floating point
            subset_size=len(images),
            ignored_scope=nncf.IgnoredScope(names=list(kept), validate=False),
        )


def _layers(model: Any, image: Tensor) -> tuple[list[str], list[str]]:
    """Names of all matrix products and convolutions, and of those that run in floating point for this image."""
    model = model.clone()
    model.reshape(list(image.shape))  # engines choose the precision of a layer when they know its shape
    compiled = compile_for_cpu(model)
    running = compiled.get_runtime_model()  # what is read below points into it
    facts = [
        [str(node.rt_info[key].astype(str)) for key in ("layerType", "originalLayersNames", "runtimePrecision")]
        for node in running.get_ordered_ops()
    ]
    layers = [(names.partition(",")[0], precision) for kind, names, precision in facts if kind in RUNNING_LAYERS]
    return [name for name, _ in layers], [name for name, precision in layers if precision not in ("i8", "u8")]


def _replace(model: Any, out: Path) -> None:
    """Write a model beside its place and put it there."""
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = out.with_name(f".{out.stem}.part.xml")
    try:
        save_openvino(model, beside)
        for suffix in (".bin", ".xml"):
            os.replace(beside.with_suffix(suffix), out.with_suffix(suffix))
    finally:
        for suffix in (".bin", ".xml"):
            beside.with_suffix(suffix).unlink(missing_ok=True)


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
