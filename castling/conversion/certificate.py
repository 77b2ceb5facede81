"""The certificate: what the switch cost, measured on trained networks and real pictures, whatever the task.

The paper drops the branch once its mask is empty. This says whether it is: per layer and head, with its history, and by
outputs and metrics of all networks that are compared, from the one that was trained to the castled one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from castling.attention import branches
from castling.conversion.comparison import Differences, LayerReport, advise, report_layers, same_tensors
from castling.conversion.inspection import kept_attentions
from castling.conversion.switch import is_castled
from castling.measure.eval_mode import eval_mode
from castling.measure.macs import count_macs, count_parameters
from castling.measure.metric import Meter, Metric
from castling.measure.occupancy import Occupancy, OccupancyRecord, record_occupancy
from castling.measure.quadratic import longest_sequence, quadratic_tensors
from castling.measure.trees import Tree, absolute_differences
from castling.models.input_size import at_size
from castling.plain_values import from_plain

Verdict = Literal["free", "cheap", "unused", "not yet"]
History = Sequence[tuple[int, Occupancy]]


class Judge(Protocol):
    """What a certificate asks of a task: every `castling.tasks.Task` is a judge."""

    def forward(self, network: Any, batch: Any) -> Tree:
        """Outputs of a network for a batch."""

    def meter(self) -> Meter:
        """A new meter; the first of its metrics decides."""

    def agreement(self, outputs: Tree, others: Tree, batch: Any) -> Tensor:
        """How far two networks say the same, from 0 to 1 for each example `(B,)`."""


@dataclass(frozen=True)
class NetworkReport:
    """One of the networks that are compared.

    Args:
        metrics: what it reached, the deciding metric first.
        parameters: their number.
        macs: the MACs of one picture.
        agreement: the share in which it says the same as the castled network.
        largest_difference: the largest difference of any number in its outputs to the castled network's.
        median_difference: the median difference of all of them.
    """

    metrics: list[Metric]
    parameters: int
    macs: int
    agreement: float
    largest_difference: float
    median_difference: float


@dataclass(frozen=True)
class Certificate:
    """What castling costs.

    Args:
        verdict: `free` (outputs identical), `cheap` (the loss is within the tolerance), `unused` (outputs identical,
            but no mask ever opened: the branch had no part in training) or `not yet`.
        tolerance: the largest loss that is cheap, in the unit of the loss.
        lost: what the castled network is worse by than the first, in the deciding metric.
        unit: what losses are counted in, such as `points`.
        num_examples: the number of pictures.
        networks: a report for each, by name, from the one that was trained to `castled`.
        state_dict_equal: whether the castled network and the one before it have the same keys and equal tensors.
        quadratic_tensors: operators of the castled network whose result is N x N; none is the proof. None where the
            network takes no picture large enough to tell.
        kept_softmax: names of attentions that were left as they are, and so are not part of that proof.
        layers: one report per attention with a branch.
        sizes: metrics of every network by the side of the pictures, where others were measured too.
        advice: what to do, or to know.
    """

    verdict: Verdict
    tolerance: float
    lost: float
    unit: str
    num_examples: int
    networks: dict[str, NetworkReport]
    state_dict_equal: bool
    quadratic_tensors: list[str] | None
    kept_softmax: list[str] = field(default_factory=list)
    layers: list[LayerReport] = field(default_factory=list)
    sizes: dict[int, dict[str, list[Metric]]] = field(default_factory=dict)
    advice: list[str] = field(default_factory=list)

    @property
    def allowed(self) -> bool:
        """Whether the castled weights may be used."""
        return self.verdict != "not yet"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Certificate:
        """A certificate of what `to_json` gave, and JSON kept.

        Raises:
            ValueError: names the first value that is none of a certificate's.
        """
        return from_plain(cls, content, "the certificate")


def certify(
    networks: Mapping[str, nn.Module],
    judge: Judge,
    batches: Iterable[Any],
    tolerance: float = 0.5,
    history: History = (),
) -> Certificate:
    """Measure what castling costs.

    Args:
        networks: two networks or more by name, left as they are; the first is what was trained, the last is castled, as
            `{"with branch": model, "castled": castle(model)}`.
        judge: the task.
        batches: validation pictures as the task makes them, on the networks' device.
        tolerance: the largest loss in the deciding metric that is still cheap: points of a percentage, else its unit.
        history: occupancies during training, from step 0, as the log has them.

    Raises:
        ValueError: if the last network is not castled, the tolerance is negative, or there is nothing to measure on.

    Example:
        >>> import timm, castling
        >>> from castling.tasks.classification.judge import LabelJudge
        >>> options = {"img_size": 32, "patch_size": 4, "embed_dim": 32, "depth": 1, "num_heads": 2, "num_classes": 10}
        >>> model = timm.create_model("castling_deit_tiny_patch16_224", **options)
        >>> batches = [{"image": torch.randn(8, 3, 32, 32), "target": torch.arange(8)}]
        >>> certify({"with branch": model, "castled": castling.castle(model)}, LabelJudge(), batches).verdict
        'unused'
    """
    names = list(networks)
    if len(names) < 2 or not is_castled(networks[names[-1]]):
        raise ValueError(f"expected at least two networks, the last of them castled; got {', '.join(names) or 'none'}")
    if tolerance < 0:
        raise ValueError(f"tolerance must be at least 0; got {tolerance}")
    with torch.no_grad(), eval_mode(*networks.values()):
        seen = _see_all(networks, judge, batches)
        reports = {name: seen.report(name, network) for name, network in networks.items()}
        kept = [site.name for site in kept_attentions(networks[names[-1]])]
        quadratic = _quadratic(networks[names[-1]], seen.image, kept)
    trained, castled = (reports[name].metrics[0] for name in (names[0], names[-1]))
    with_branch = next((network for network in networks.values() if branches(network)), None)
    layers = [] if with_branch is None else report_layers(with_branch, seen.occupancy, history)
    equal = same_tensors(networks[names[-2]].state_dict(), networks[names[-1]].state_dict())
    lost, difference = trained.lost_by(castled), reports[names[0]].largest_difference
    verdict: Verdict
    if quadratic or not equal or not math.isfinite(difference):  # equal NaNs have equal metrics
        verdict = "not yet"
    elif difference == 0:
        verdict = "unused" if layers and not any(layer.opened for layer in layers) else "free"
    else:
        verdict = "cheap" if lost <= tolerance else "not yet"  # nor if it is no number
    return Certificate(
        verdict=verdict,
        tolerance=tolerance,
        lost=lost,
        unit=trained.difference_unit,
        num_examples=seen.num_examples,
        networks=reports,
        state_dict_equal=equal,
        quadratic_tensors=quadratic,
        kept_softmax=kept,
        layers=layers,
        advice=advise(verdict, lost, trained.difference_unit, layers, quadratic, equal, math.isfinite(difference)),
    )


class _Seen:
    """What several networks gave for the same pictures."""

    def __init__(self, names: Sequence[str], judge: Judge) -> None:
        self.judge = judge
        self.castled = names[-1]
        self.meters = {name: judge.meter() for name in names}
        self.differences = {name: Differences() for name in names}
        self.agreements = dict.fromkeys(names, 0.0)
        self.num_examples = 0
        self.image: Tensor
        self.occupancy = OccupancyRecord()

    def add(self, outputs: Mapping[str, Tree], batch: Any) -> None:
        castled = outputs[self.castled]
        for name, found in outputs.items():
            self.meters[name].update(found, batch)
            self.differences[name].add(absolute_differences(found, castled))
            self.agreements[name] += float(self.judge.agreement(found, castled, batch).double().sum())
        self.image = batch["image"][:1]
        self.num_examples += len(batch["image"])

    def report(self, name: str, network: nn.Module) -> NetworkReport:
        return NetworkReport(
            metrics=self.meters[name].result(),
            parameters=count_parameters(network),
            macs=count_macs(network, self.image).total,
            agreement=self.agreements[name] / self.num_examples,
            largest_difference=self.differences[name].largest,
            median_difference=self.differences[name].median(),
        )


def _see_all(networks: Mapping[str, nn.Module], judge: Judge, batches: Iterable[Any]) -> _Seen:
    seen = _Seen(list(networks), judge)
    for batch in batches:
        outputs = {}
        for name, network in networks.items():
            with record_occupancy(network, seen.occupancy):
                outputs[name] = judge.forward(network, batch)
        seen.add(outputs, batch)
    if not seen.num_examples:
        raise ValueError("there was no readable picture to certify the network on")
    return seen


def _quadratic(network: nn.Module, image: Tensor, kept: Sequence[str]) -> list[str] | None:
    """N x N results in the castled network, at a size at which N exceeds every width of the network.

    At the training size a weight matrix may look like an attention map; a larger picture tells them apart.
    """
    widest = max(max(parameter.shape, default=0) for parameter in network.parameters())
    num_patches = max(1, longest_sequence(network, image) - 1)  # one of them may be a class token, which does not grow
    factor = 2 ** math.ceil(math.log2(max(1.0, math.sqrt((widest + 1) / num_patches))))
    large = nn.functional.interpolate(image, scale_factor=float(factor))
    try:
        network = at_size(network, large.shape[-1]) if factor > 1 else network
        ignored = [network.get_submodule(name) for name in kept]
        return quadratic_tensors(lambda: network(large), num_patches * factor**2, ignored)
    except (AssertionError, RuntimeError, ValueError):  # a network of one size
        return None
