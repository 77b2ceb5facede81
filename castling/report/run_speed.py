"""What the network of a run costs as pictures grow, castled and with softmax attention, kept in the run's folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from castling.conversion import castle, softmax_twin_of
from castling.measure.environment import describe_environment
from castling.measure.plain_json import json_text
from castling.measure.resolution import CostRow, cost_over_resolution
from castling.models.input_size import at_size
from castling.report.run_data import CASTLED, SOFTMAX, Content
from castling.training.run_folder import write_file
from castling.training.saved import open_model

SCALES = (1, 2, 4, 8)  # times the side of the pictures in training
LARGEST = 1024  # pixels, unless training had larger pictures


def default_sizes(image_size: int) -> list[int]:
    """The size of training and its multiples.

    Example:
        >>> default_sizes(224), default_sizes(2048)
        ([224, 448, 896], [2048])
    """
    return [scale * image_size for scale in SCALES if scale == 1 or scale * image_size <= LARGEST]


def measure_run(folder: Path, sizes: Sequence[int], on_size: Callable[[int], None] = lambda size: None) -> Content:
    """Measure the castled network of a run beside the same with softmax attention, and write speed.json.

    Args:
        folder: the folder of the run.
        sizes: sides of the square images in pixels.
        on_size: called with a size when it is done.

    Returns:
        What was written: `environment`, and `rows` as of `cost_over_resolution`.

    Raises:
        ValueError: for a run without weights or without castling attention, or sizes that cannot be measured.
    """
    saved = open_model(folder)
    channels = saved.task.deployment().example.shape[1]
    networks = {CASTLED: castle(saved.network), SOFTMAX: softmax_twin_of(saved.network).eval()}
    rows: list[CostRow] = []
    for size in sorted(set(sizes), reverse=True):  # then every other size runs in memory that the process holds
        resized = {name: at_size(network, size) for name, network in networks.items()}
        rows = cost_over_resolution(resized, [size], channels) + rows
        on_size(size)
    content: Content = {"environment": describe_environment(), "rows": rows}
    write_file(folder / "speed.json", (json_text(content, indent=1) + "\n").encode())
    return content
