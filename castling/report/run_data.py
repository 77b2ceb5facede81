"""A run folder as data: what training wrote, read once and left as it is.

A run that is still going, or that was never castled, is a run as well: whatever is not there yet is None or empty.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import nn

from castling.measure.environment import describe_environment
from castling.measure.resolution import cost_over_resolution
from castling.settings import read_yaml

Record = dict[str, Any]
Side = Literal["model", "castled"]
CASTLED, SOFTMAX = "castled", "softmax"  # names of the two models in speed.json


@dataclass(frozen=True)
class RunData:
    """What a run folder says.

    Args:
        folder: where it was read.
        config: the resolved recipe, nested.
        config_text: the same as it is written.
        steps: logged training steps, in order.
        evals: evaluations, in order.
        environment: hardware, versions, command and seed of the training.
        certificate: what castling cost, or None if that was not asked yet.
        summary: how the run ended, or None while it goes on.
        speed: environment and rows of the measured cost over resolution, or None.
        num_quarantined: pictures that could not be read.
    """

    folder: Path
    config: Record
    config_text: str
    steps: tuple[Record, ...]
    evals: tuple[Record, ...]
    environment: dict[str, str]
    certificate: Record | None
    summary: Record | None
    speed: Record | None
    num_quarantined: int

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.folder.resolve().name

    @property
    def is_baseline(self) -> bool:
        """Whether this is a softmax network, a plain one or a twin of ours, which has nothing to castle."""
        kernel = lookup(self.config, "model.kernel") or lookup(self.config, "model.attention.kernel")
        return kernel == "softmax" or not str(lookup(self.config, "model.name")).startswith("castling_")

    @property
    def metric(self) -> str:
        """The metric by which the run is judged: the certificate's, else top-1 accuracy, else the first logged."""
        if self.certificate:
            return str(self.certificate["metric"])
        logged = [name for name in (self.evals[-1]["model"] if self.evals else {}) if name != "loss"]
        return "top1" if "top1" in logged or not logged else logged[0]

    def score(self, side: Side) -> float | None:
        """The metric with the branch (`model`) or without (`castled`): as certified, else at the end, else latest."""
        key = "with_branch" if side == "model" else "castled"
        last = self.evals[-1] if self.evals else {}
        metrics = [(source or {}).get(side) or {} for source in (self.summary, last)]
        found = [(self.certificate or {}).get(key), *(values.get(self.metric) for values in metrics)]
        return next((float(value) for value in found if value is not None), None)


@dataclass(frozen=True)
class Trajectory:
    """Occupancy of one layer's mask over training, as shares from 0 to 1.

    Args:
        layer: its name.
        steps: training steps.
        mean: over the heads, at each step.
        low: of the emptiest head.
        high: of the fullest head.
    """

    layer: str
    steps: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def read_run(folder: Path) -> RunData:
    """Read a run folder.

    Args:
        folder: with at least config.yaml and log.jsonl.

    Raises:
        ValueError: if it is no run folder, or a file in it cannot be read; names the file.

    Example:
        >>> read_run(Path("no_such_run"))
        Traceback (most recent call last):
        ValueError: no_such_run is not a run folder: it lacks config.yaml and log.jsonl
    """
    missing = [name for name in ("config.yaml", "log.jsonl") if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"{folder} is not a run folder: it lacks {' and '.join(missing)}")
    config_text = (folder / "config.yaml").read_text()
    log = _read_lines(folder / "log.jsonl")
    return RunData(
        folder=folder,
        config=read_yaml(config_text, str(folder / "config.yaml")),
        config_text=config_text,
        steps=tuple(record for record in log if record.get("kind") == "step"),
        evals=tuple(record for record in log if record.get("kind") == "eval"),
        environment={key: str(value) for key, value in (_read_json(folder / "environment.json") or {}).items()},
        certificate=_read_json(folder / "certificate.json"),
        summary=_read_json(folder / "summary.json"),
        speed=_read_json(folder / "speed.json"),
        num_quarantined=len(_read_lines(folder / "quarantine.jsonl")),
    )


def lookup(config: Mapping[str, Any], key: str) -> Any:
    """A value of a nested mapping by its dotted key, or None if it is not there.

    Example:
        >>> lookup({"data": {"image_size": 32}}, "data.image_size"), lookup({"data": None}, "data.image_size")
        (32, None)
    """
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def number(value: float | None) -> float:
    """A logged number; what was not logged is not a number, which figures leave out."""
    return math.nan if value is None else float(value)


def occupancy_trajectories(run: RunData) -> list[Trajectory]:
    """How full the mask of every layer was at each logged step (the paper's figure of non-zeros in masks)."""
    layers: dict[str, list[tuple[int, list[float]]]] = {}
    for record in run.steps:
        for layer, heads in (record.get("occupancy") or {}).items():
            if heads:
                layers.setdefault(layer, []).append((record["step"], heads))
    return [
        Trajectory(
            layer=layer,
            steps=tuple(step for step, _ in points),
            mean=tuple(sum(heads) / len(heads) for _, heads in points),
            low=tuple(min(heads) for _, heads in points),
            high=tuple(max(heads) for _, heads in points),
        )
        for layer, points in layers.items()
    ]


def measure_run(
    folder: Path,
    model: nn.Module,
    twin: nn.Module,
    sizes: Sequence[int],
    channels: int = 3,
    on_size: Callable[[int], None] | None = None,
) -> Record:
    """Measure a castled model beside its softmax twin over the resolution, and keep the result in speed.json.

    Args:
        folder: the run's.
        model: castled.
        twin: the same network with softmax attention.
        sizes: sides of the square images in pixels.
        channels: of the images.
        on_size: called with a size when it is done.

    Returns:
        What was written: `environment`, and `rows` as of `cost_over_resolution`.

    Raises:
        ValueError: for sizes that cannot be measured.
    """
    rows = cost_over_resolution({CASTLED: model, SOFTMAX: twin}, sizes, channels, on_size=on_size)
    content: Record = {"environment": describe_environment(), "rows": rows}
    (folder / "speed.json").write_text(json.dumps(content, indent=1) + "\n")
    return content


def _read_json(path: Path) -> Record | None:
    """A JSON object, or None if there is no such file."""
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold an object; got {type(content).__name__}")
    return content


def _read_lines(path: Path) -> list[Record]:
    """One JSON object a line; the last line of a live run may be cut short and is then left out."""
    lines = path.read_text().splitlines() if path.is_file() else []
    records: list[Record] = []
    for count, line in enumerate(lines, 1):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            if count < len(lines):
                raise ValueError(f"{path}, line {count} is not JSON: {error}") from error
    return records
