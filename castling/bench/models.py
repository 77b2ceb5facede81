"""Whole networks, castled and softmax, in the same run: time, memory and MACs over image and patch size.

The paper's tables of throughput, memory and patch sizes, on the machine at hand; ratios are those of medians. A row
never ends the benchmark: what cannot be measured is an empty cell, a note in the row and a warning.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from castling.bench.candidates import (
    KINDS,
    Kind,
    Setting,
    build_timed,
    is_onnx,
    passes_of,
    patch_of,
    raw_model,
    write_pass,
)
from castling.bench.results_file import number_in, time_cells
from castling.bench.subjects import is_subject
from castling.exporting.engines import OPENVINO, EngineName
from castling.measure import Timing, count_macs, time_interleaved
from castling.measure.memory import MIB, available_memory, forecast_memory, peak_memory
from castling.measure.shapes import shapes_only
from castling.models import deit
from castling.report.model_table import model_names
from castling.report.paper import paper_numbers

logger = logging.getLogger(__name__)

MODELS = (
    *deit.SIZES,
    *(f"castling_levit_{width}" for width in (128, 256, 384)),
    *(f"castling_mvitv2_{size}" for size in ("tiny", "base")),
)
SIZES = (224, 384, 512, 1024, 1536)
PATCHES = (16, 8, 4, 2)
PATCH_STUDY_SIZE = 224
MANY_MAPS = 64  # N x N, float32: more than any of our networks holds at once, biases included
WEIGHTS = 1024  # MiB, as much
TOTAL_SECONDS = 8.0  # small networks take turns more often: their times are short, and the machine's noise is not
MIN_ROUNDS = 7  # fewer have no quartiles worth the name
SLOW_SECONDS, SLOW_ROUNDS = 5.0, 3  # where a pass takes so long, so many are enough
READERS = (*OPENVINO, "onnxruntime")  # engines that read files
KEY = ("model", "size", "patch", "engine", "batch", "threads", "against")

Row = dict[str, Any]


def make_settings(
    models: Sequence[str],
    sizes: Sequence[int | str],
    patches: Sequence[int],
    engines: Sequence[EngineName],
    batches: Sequence[int] = (1,),
) -> list[Setting]:
    """The rows of a benchmark: every model at every size, and DeiT with every patch size at 224 px.

    Args:
        models: names of models, parts of names or wildcards; runs; recipes whose data is there.
        sizes: sides of square images, or heights and widths as `HxW`.
        patches: patch sizes of DeiT.
        engines: names of engines.
        batches: numbers of images at a time.

    Raises:
        ValueError: for a name that matches nothing, or sizes that do not fit.

    Example:
        >>> settings = make_settings(["deit_tiny"], [224, 512], [16, 8], ["eager"])
        >>> [(setting.size, setting.patch) for setting in settings]
        [(224, 16), (512, 16), (224, 8)]
    """
    found = [[pattern] if is_subject(pattern) else model_names(pattern) for pattern in models]
    names = list(dict.fromkeys(name for several in found for name in several))
    settings = []
    for name in names:
        places = [(size, patch_of(name)) for size in sizes]
        if name in deit.SIZES:
            places += [(PATCH_STUDY_SIZE, patch) for patch in patches]
        settings += [
            Setting(name, size, patch, engine, batch)
            for engine, batch, (size, patch) in product(engines, batches, places)
        ]
    return list(dict.fromkeys(settings))


def measure_row(
    setting: Setting,
    repeats: int = MIN_ROUNDS,
    threads: int | None = None,
    memory: bool = True,
    against: str | None = None,
    without: Sequence[Kind] = (),
) -> Row:
    """Measure one row, whatever happens to its candidates.

    Args:
        setting: the row.
        repeats: number of rounds in which the candidates take turns, at least.
        threads: threads of the engine; torch's by default.
        memory: whether the peak memory is measured as well.
        against: another candidate: an ONNX file or a model of timm's.
        without: candidates to leave out.

    Returns:
        All columns; None where something could not be measured, with the reason in `notes`.

    Raises:
        ImportError: if the engine is not installed; names the extra.
    """
    threads = threads or torch.get_num_threads()
    notes: list[str] = []
    wanted = [kind for kind in passes_of(against, setting.model) if kind not in without]
    kinds = [kind for kind in wanted if _fits(setting, kind, against, notes)]
    timings = _time(setting, kinds, repeats, threads, against, notes)
    row: Row = {
        "model": setting.model,
        "size": setting.size,
        "patch": setting.patch,
        "tokens": setting.num_tokens,
        "engine": setting.engine,
        "batch": setting.batch,
        "threads": threads,
        "against": against,
    }
    for kind in KINDS:
        row |= time_cells(kind, timings.get(kind))
    for kind in KINDS[1:]:
        row[f"speedup_over_{kind}"] = _ratio(row[f"{kind}_ms"], row["castled_ms"])
    for kind in KINDS:
        found = _memory(setting, kind, against, threads, notes) if memory and kind in kinds else (None, None)
        row[f"{kind}_pass_mib"], row[f"{kind}_peak_mib"] = found
    row |= _macs(setting, against, notes)
    row["mac_bound"] = _ratio(row["softmax_macs"], row["castled_macs"])
    row["bound_reached"] = _ratio(row["speedup_over_softmax"], row["mac_bound"])
    row |= paper_cells(setting)
    row["notes"] = "; ".join(notes)
    return row


def paper_cells(setting: Setting) -> dict[str, str | None]:
    """The paper's images per second and memory in MB for this row, as printed; None where it has none.

    Example:
        >>> paper_cells(Setting("castling_deit_base_patch16_224", 1024, 16))["paper_softmax_mb"]
        '12369'
    """
    family, size = ("", "") if is_subject(setting.model) else setting.model.split("_")[1:3]
    name = {"deit": "DeiT-", "mvitv2": "MViTv2-"}.get(family, "LeViT-") + size.capitalize()
    cells: dict[str, str | None] = {}
    for kind, row in (("softmax", name), ("castled", f"Castling-{name}")):
        is_default = setting.patch == patch_of(setting.model)
        if is_default:
            speed = paper_numbers().get(("throughput", row, f"images_per_s_{setting.size}"))
        elif setting.size == PATCH_STUDY_SIZE:
            speed = paper_numbers().get(("patch_size", row, f"images_per_s_patch{setting.patch}"))
        else:
            speed = None
        memory = paper_numbers().get(("throughput", row, f"memory_mb_{setting.size}")) if is_default else None
        cells |= {f"paper_{kind}_images_per_s": speed, f"paper_{kind}_mb": memory}
    return cells


def row_key(row: Row) -> tuple[str, ...]:
    """What makes two rows the same measurement."""
    return tuple("" if row[column] is None else str(row[column]) for column in KEY)


def paper_ratios(row: Mapping[str, Any]) -> dict[str, float | None]:
    """Ratios of the paper in a row: how much faster, and in how much less memory, it castled. None after an OOM.

    Example:
        >>> paper_ratios(paper_cells(Setting("castling_deit_base_patch16_224", 512, 16)))
        {'speedup': 1.2, 'saving': 1.222444889779559}
    """
    return {
        "speedup": _ratio(number_in(row, "paper_castled_images_per_s"), number_in(row, "paper_softmax_images_per_s")),
        "saving": _ratio(number_in(row, "paper_softmax_mb"), number_in(row, "paper_castled_mb")),
    }


def _fits(setting: Setting, kind: Kind, against: str | None, notes: list[str]) -> bool:
    """Whether the candidate would leave half of the memory free; most do not where they make N x N maps."""
    if _is_file(kind, against):
        return True
    half = available_memory() / 2
    if kind != "against" and MANY_MAPS * 4 * setting.num_tokens**2 / MIB + WEIGHTS < half:
        return True  # whatever the forecast, which takes seconds, would say
    try:
        needed = forecast_memory(partial(raw_model, setting, kind, against), tuple(setting.image().shape))
    except Exception as error:  # a network of the user's may do anything; then nothing is forecast
        logger.debug("no forecast for %s of %s: %s", kind, setting, error)
        return True
    if needed > half:
        _note(notes, setting, kind, f"skipped: it needs {needed:,.0f} MiB, and half of the free memory is {half:,.0f}")
    return needed <= half


def _time(
    setting: Setting, kinds: Sequence[Kind], repeats: int, threads: int, against: str | None, notes: list[str]
) -> dict[str, Timing]:
    """Times of those candidates that run."""
    passes: dict[str, Callable[[], object]] = {}
    slowest = 0.0
    for kind in kinds:
        try:
            run = build_timed(setting, kind, threads, against)
            run()
            begin = time.perf_counter()
            run()
            slowest = max(slowest, time.perf_counter() - begin)
        except ImportError:
            raise
        except Exception as error:  # every engine refuses in its own way
            _note(notes, setting, kind, f"failed: {_first_line(error)}")
        else:
            passes[kind] = run
    try:
        rounds = repeats if slowest < SLOW_SECONDS else SLOW_ROUNDS
        return time_interleaved(passes, repeats=rounds, warmup=0, total_seconds=TOTAL_SECONDS)
    finally:
        passes.clear()
        gc.collect()
        torch.compiler.reset()


def _memory(
    setting: Setting, kind: Kind, against: str | None, threads: int, notes: list[str]
) -> tuple[float | None, float | None]:
    """MiB of the pass alone, and of all that a process holds for it; from a file in engines that read them."""
    room, shape = "castling.bench.candidates", list(setting.image().shape)
    try:
        if _is_file(kind, against):
            found = peak_memory(f"{room}:open_pass", {"path": against, "shape": shape}, threads)
        elif setting.engine in READERS:
            with TemporaryDirectory() as folder:
                path = write_pass(Path(folder), setting, kind, against)
                given = {"path": str(path), "shape": shape, "engine": setting.engine}
                found = peak_memory(f"{room}:open_pass", given, threads)
        else:
            found = peak_memory(f"{room}:build_pass", {**asdict(setting), "kind": kind, "against": against}, threads)
    except (MemoryError, RuntimeError) as error:
        _note(notes, setting, kind, f"has no memory: {_first_line(error)}")
        return None, None
    return found.of_pass, found.of_candidate


def _macs(setting: Setting, against: str | None, notes: list[str]) -> Row:
    """MACs without computing; of networks before folding, as tables count them.

    The host has those of its cheaper form: the fused one pads LeViT's keys, the other has MViTv2's relative positions.
    """
    macs: Row = {f"{kind}_macs": None for kind in KINDS}
    for kind in passes_of(against, setting.model):
        if _is_file(kind, against):
            continue
        try:
            with shapes_only():
                network = raw_model(setting, kind, against)
                image = setting.image()
            macs[f"{kind}_macs"] = count_macs(network, image).total
        except Exception as error:
            _note(notes, setting, kind, f"has no MACs: {_first_line(error)}")
    host = [count for kind in ("host", "unfused") if (count := macs.pop(f"{kind}_macs")) is not None]
    return {**macs, "host_macs": min(host, default=None)}


def _is_file(kind: Kind, against: str | None) -> bool:
    return kind == "against" and is_onnx(against)


def _ratio(above: float | None, below: float | None) -> float | None:
    return None if above is None or not below else above / below


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip().splitlines()[0][:200]


def _note(notes: list[str], setting: Setting, kind: Kind, text: str) -> None:
    notes.append(f"{kind} {text}")
    logger.warning("%s at %s px, %s: %s %s", setting.model, setting.size, setting.engine, kind, text)
