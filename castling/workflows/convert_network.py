"""A trained network converted: its stages trained, the result certified beside the original, and castled if allowed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from accelerate import PartialState

from castling.conversion import Certificate
from castling.training.manifest import MANIFEST
from castling.training.saved import CASTLED, CERTIFICATE
from castling.workflows.castle_run import Track, castle_run
from castling.workflows.linearize import ORIGINAL, RESULT, Linearization, Train, check_same, linearize, stage_recipes
from castling.workflows.originals import Original


def convert_network(
    original: Original,
    out: Path,
    settings: Linearization,
    train_stage: Train,
    overrides: Iterable[str] = (),
    tolerance: float = 0.5,
    sizes: Sequence[int] = (),
    track: Track = lambda batches, count: batches,
) -> tuple[Path, Certificate | None, Path | None]:
    """Convert a trained network; called again with the same settings, it goes on where it stopped.

    Args:
        original: the network.
        out: the folder of the conversion, with a run for each stage in it.
        settings: the stages.
        train_stage: trains a recipe in a folder; its third argument says whether to go on with what is there.
        overrides: `key=value`, for the recipes of all stages.
        tolerance: the largest loss that is cheap, in points or in the unit of the deciding metric.
        sizes: other sides of the pictures to measure at.
        track: shows the progress of batches.

    Returns:
        The run folder of the last stage, the certificate, and the folder of the castled weights; None for the
        certificate in processes other than the first, and for weights that the verdict forbids.

    Raises:
        ValueError: for settings that do not fit, or other than those that the conversion began with.
    """
    recipes = stage_recipes(original.recipe, out, settings, overrides)
    check_same(recipes, settings.stages, out)
    processes = PartialState(cpu=not torch.accelerator.is_available())
    if processes.is_main_process:
        out.mkdir(parents=True, exist_ok=True)
        if original.write_weights is not None:
            original.write_weights(out / ORIGINAL)
    processes.wait_for_everyone()
    trained_before = all((out / stage / RESULT).is_file() for stage in settings.stages)
    folder = linearize(recipes, settings.stages, out, train_stage)
    if not processes.is_main_process:
        return folder, None, None
    known = _certificate(folder) if trained_before else None
    if known is not None and known.tolerance == tolerance and set(known.sizes) == set(sizes):
        castled = folder / CASTLED if known.allowed else None
        if castled is None or (castled / MANIFEST).is_file():
            return folder, known, castled
    certificate, castled = castle_run(folder, tolerance, sizes=sizes, track=track)
    return folder, certificate, castled


def _certificate(folder: Path) -> Certificate | None:
    """The certificate of a run that was castled before; None where there is none to go by."""
    try:
        return Certificate.from_json(json.loads((folder / CERTIFICATE).read_bytes()))
    except (OSError, ValueError, KeyError, TypeError):  # not there, cut short, or of another version
        return None
