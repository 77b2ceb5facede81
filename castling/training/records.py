"""What happens in training, as records: one for every step, one for every evaluation. The log is made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from castling.measure.metric import Metric, as_values, describe_metrics, with_values
from castling.measure.occupancy import Occupancy
from castling.plain_values import from_plain, plain_value
from castling.sentences import shown


@dataclass(frozen=True)
class StepRecord:
    """One optimizer step.

    Args:
        step: its number, from 0.
        num_steps: the steps of the whole run.
        epoch: the epochs before it, a fraction.
        loss: the mean since the last line of the log; None where no step had a finite one.
        learning_rate: the learning rate of this step.
        threshold: the threshold of the masks; None for a network without branches.
        blend: the blend of a converted network; None for others.
        gradient_norm: None where it is not finite.
        skipped: the number of steps skipped so far.
        parts: what the loss is made of, by name; in the log only.
        occupancy: the occupancy of every attention and head; in the log only.
    """

    step: int
    num_steps: int
    epoch: float
    loss: float | None
    learning_rate: float
    threshold: float | None = None
    blend: float | None = None
    gradient_norm: float | None = None
    skipped: int = 0
    parts: dict[str, float] = field(default_factory=dict)
    occupancy: Occupancy = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """A line of the log."""
        return {"kind": "step", **asdict(self)}


@dataclass(frozen=True)
class EvalRecord:
    """One evaluation.

    Args:
        step: the number of steps before it.
        epoch: the epochs before it, a fraction.
        model: metrics of the network as it is, the deciding one first.
        castled: metrics without its branches; None where there is nothing to drop.
        occupancy: the occupancy of every attention and head.
    """

    step: int
    epoch: float
    model: list[Metric]
    castled: list[Metric] | None = None
    occupancy: Occupancy = field(default_factory=dict)

    @property
    def deciding(self) -> Metric:
        """The metric by which checkpoints are chosen: that of the castled network, where there is one."""
        return (self.castled or self.model)[0]

    def to_json(self) -> dict[str, Any]:
        """A line of the log: values by name, and once beside them what they are."""
        return {
            "kind": "eval",
            "step": self.step,
            "epoch": self.epoch,
            "metrics": describe_metrics(self.model),
            "model": as_values(self.model),
            "castled": None if self.castled is None else as_values(self.castled),
            "occupancy": self.occupancy,
        }

    def to_summary(self) -> dict[str, Any]:
        """The metrics, as the summary of a run has them."""
        line = self.to_json()
        return {name: line[name] for name in ("metrics", "model", "castled")}


Record = StepRecord | EvalRecord
Watch = Callable[[Record], None]


def read_record(line: object) -> Record:
    """The record that a line of the log was made of.

    Raises:
        ValueError: for a line of another kind, or with values that it cannot have.

    Example:
        >>> record = EvalRecord(10, 1.0, [Metric("error", 0.5, "", higher_is_better=False)])
        >>> read_record(record.to_json()) == record
        True
    """
    if not isinstance(line, Mapping):
        raise ValueError(f"a line of the log is an object; got {shown(line)}")
    rest = {key: value for key, value in line.items() if key not in ("kind", "metrics")}
    if line.get("kind") == "step":
        return from_plain(StepRecord, rest)
    if line.get("kind") == "eval":
        described = plain_value(line.get("metrics"), list[dict[str, Any]], "metrics")
        for side in ("model", "castled"):
            values = plain_value(rest.get(side), dict[str, float] | None, side)
            if values is not None:
                rest[side] = [asdict(metric) for metric in with_values(described, values)]
        return from_plain(EvalRecord, rest)
    raise ValueError(f"a line of the log is of the kind 'step' or 'eval'; got {shown(line.get('kind'))}")


def flat_numbers(line: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Numbers of a line of the log by a path, as trackers want them; heads are averaged.

    Example:
        >>> flat_numbers({"step": 3, "loss": 0.5, "occupancy": {"attn": [0.0, 1.0]}})
        {'loss': 0.5, 'occupancy/attn': 0.5}
    """
    flat: dict[str, float] = {}
    for key, value in line.items():
        if isinstance(value, dict):
            flat |= flat_numbers(value, f"{prefix}{key}/")
        elif isinstance(value, list) and value and key != "metrics":
            flat[prefix + key] = sum(value) / len(value)
        elif isinstance(value, (int, float)) and key != "step":
            flat[prefix + key] = value
    return flat
