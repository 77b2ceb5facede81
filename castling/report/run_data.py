"""A run folder as data: what training wrote, read once and left as it is.

A run that is still going, or that was never castled, is a run as well: whatever is not there yet is None or empty.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from castling.conversion.certificate import Certificate
from castling.measure.metric import Metric
from castling.measure.plain_json import read_object
from castling.plain_values import plain_value
from castling.training.recipe import Recipe
from castling.training.records import EvalRecord, StepRecord
from castling.training.run_folder import NETWORK, RunFolder

Content = dict[str, Any]
Side = Literal["model", "castled"]
CASTLED, SOFTMAX = "castled", "softmax"  # names of the two networks in speed.json


@dataclass(frozen=True)
class RunData:
    """What a run folder says.

    Args:
        folder: the folder that it was read from.
        recipe: the recipe of the run.
        config_text: the same as it is written.
        steps: logged training steps, in order.
        evals: evaluations, in order.
        environment: hardware, versions, command and seed of the training.
        network: what is known of the network.
        certificate: what castling cost, or None if that was not asked yet.
        summary: how the run ended, or None while it goes on.
        speed: environment and rows of the measured cost over resolution, or None.
        num_quarantined: the number of pictures that could not be read.
    """

    folder: Path
    recipe: Recipe
    config_text: str
    steps: tuple[StepRecord, ...]
    evals: tuple[EvalRecord, ...]
    environment: dict[str, str]
    network: Content
    certificate: Content | None
    summary: Content | None
    speed: Content | None
    num_quarantined: int

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.folder.resolve().name

    @property
    def is_baseline(self) -> bool:
        """Whether this is a softmax network, a plain one or a twin of ours, which has nothing to castle."""
        return self.network["attention"] == "softmax"

    @property
    def is_converted(self) -> bool:
        """Whether castling attention came into a trained network."""
        return self.network["attention"] == "converted"

    @property
    def image_size(self) -> int:
        """Side of the pictures in training."""
        size: int = self.recipe.settings.data.image_size
        return size

    @property
    def metric(self) -> Metric | None:
        """The deciding metric as it was found last; its name, unit and direction are what matters."""
        return self.score("model")

    def score(self, side: Side) -> Metric | None:
        """The deciding metric with the branch (`model`) or without (`castled`): as certified, else the latest."""
        if self.certificate:
            networks = list(self.certificate["networks"].values())
            return Metric(**networks[-2 if side == "model" else -1]["metrics"][0])
        found = getattr(self.evals[-1], side) if self.evals else None
        return found[0] if found else None

    def original_score(self) -> Metric | None:
        """The deciding metric of the network before it was converted, as certified."""
        networks = list((self.certificate or {"networks": {}})["networks"].values())
        return Metric(**networks[0]["metrics"][0]) if len(networks) > 2 else None


@dataclass(frozen=True)
class Trajectory:
    """Occupancy of one layer's mask over training, as shares from 0 to 1.

    Args:
        layer: its name.
        steps: training steps.
        mean: over the heads, at each step.
        low: the occupancy of the emptiest head.
        high: the occupancy of the fullest head.
    """

    layer: str
    steps: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def read_run(folder: Path) -> RunData:
    """Read a run folder.

    Args:
        folder: a run folder with at least the recipe, the network's description and the log.

    Raises:
        ValueError: if it is no run folder, or a file in it cannot be read; names the file.

    Example:
        >>> read_run(Path("no_such_run"))
        Traceback (most recent call last):
        ValueError: no_such_run is no run folder: it has no config.yaml
    """
    run = RunFolder(folder)
    recipe = run.recipe()
    network = run.network()
    plain_value(network.get("attention"), str, f"{folder / NETWORK}: attention")
    records = run.records()
    return RunData(
        folder=folder,
        recipe=recipe,
        config_text=(folder / "config.yaml").read_text(encoding="utf-8"),
        steps=tuple(record for record in records if isinstance(record, StepRecord)),
        evals=tuple(record for record in records if isinstance(record, EvalRecord)),
        environment={key: str(value) for key, value in (_read_json(folder / "environment.json") or {}).items()},
        network=network,
        certificate=_read_json(folder / "certificate.json", _check_certificate),
        summary=_read_json(folder / "summary.json", _check_summary),
        speed=_read_json(folder / "speed.json", _check_speed),
        num_quarantined=len(run.quarantined()),
    )


def or_nan(value: float | None) -> float:
    """A logged number; what was not logged is not a number, which figures leave out."""
    return math.nan if value is None else float(value)


def occupancy_trajectories(run: RunData) -> list[Trajectory]:
    """How full the mask of every layer was at each logged step (the paper's figure of non-zeros in masks)."""
    layers: dict[str, list[tuple[int, list[float]]]] = {}
    for record in run.steps:
        for layer, heads in record.occupancy.items():
            if heads:
                layers.setdefault(layer, []).append((record.step, heads))
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


def _read_json(path: Path, check: Callable[[Content], object] = lambda content: None) -> Content | None:
    """A JSON object, or None if there is no such file."""
    if not path.is_file():
        return None
    content = read_object(path)
    try:
        check(content)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return content


def _check_certificate(content: Content) -> None:
    found = Certificate.from_json(content)
    if len(found.networks) < 2 or not all(report.metrics for report in found.networks.values()):
        raise ValueError("a certificate compares two networks or more, with the metrics of each")


def _check_summary(content: Content) -> None:
    kinds = {"status": str, "seconds": float, "skipped_steps": int, "rollbacks": int}
    for key in kinds.keys() & content.keys():
        plain_value(content[key], kinds[key], key)


def _check_speed(content: Content) -> None:
    plain_value(content.get("environment") or {}, dict[str, Any], "environment")
    for place, row in enumerate(plain_value(content.get("rows") or [], list[dict[str, Any]], "rows")):
        for key, kind in (("size", int), ("macs", dict[str, float]), ("milliseconds", dict[str, float])):
            plain_value(row.get(key), kind, f"rows[{place}].{key}")
            if key != "size" and not {CASTLED, SOFTMAX} <= set(row[key]):
                raise ValueError(f"rows[{place}].{key} must have {CASTLED!r} and {SOFTMAX!r}")
