"""The parts of a certificate: differences of outputs, a report for each attention, and what they advise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from castling.attention import branches, can_empty
from castling.attention.threshold import absolute_cut
from castling.measure.occupancy import Occupancy, OccupancyRecord

MOST_KEPT = 2**22  # numbers from which the median is taken; of more, every second, fourth ... is kept


@dataclass(frozen=True)
class LayerReport:
    """One attention.

    Args:
        name: the name in the network.
        num_tokens: the number of keys that it sees.
        cut: the attention weight at or below which an entry is dropped.
        can_empty: whether any attention over so many keys can have an empty mask under this cut.
        occupancy: the share of entries that survive, per head, over the pictures.
        peak: the largest occupancy in the history, per head; today's where there is no history.
        opened: whether the mask ever let anything through.
        history: steps with the occupancy of every head.
    """

    name: str
    num_tokens: int
    cut: float
    can_empty: bool
    occupancy: list[float]
    peak: list[float]
    opened: bool
    history: list[tuple[int, list[float]]]


class Differences:
    """The largest and the median of many numbers, which need not fit into memory.

    Example:
        >>> differences = Differences()
        >>> differences.add(torch.tensor([1.0, 5.0, 3.0]))
        >>> differences.largest, differences.median()
        (5.0, 3.0)
    """

    def __init__(self) -> None:
        self.largest = 0.0
        self._kept: list[Tensor] = []
        self._stride = 1

    def add(self, numbers: Tensor) -> None:
        """Take in numbers of a flat tensor."""
        if not len(numbers):
            return
        largest = float(numbers.max())
        self.largest = largest if largest != largest else max(self.largest, largest)  # no number stays one
        self._kept.append(numbers[:: self._stride].cpu())
        while sum(map(len, self._kept)) > MOST_KEPT:
            self._stride *= 2
            self._kept = [torch.cat(self._kept)[::2]]

    def median(self) -> float:
        """The median of the numbers; of a regular part of them where there are very many."""
        return float(torch.cat(self._kept).median()) if self._kept else 0.0


def report_layers(
    network: nn.Module, seen: OccupancyRecord, history: Sequence[tuple[int, Occupancy]]
) -> list[LayerReport]:
    """A report for each attention with a branch.

    Args:
        network: the network, with its branches.
        seen: its occupancy over the pictures.
        history: its occupancy during training.
    """
    occupancy, reports = seen.mean(), []
    for name, branch in branches(network).items():
        past = [(step, heads[name]) for step, heads in history if name in heads]
        peak = [max(values) for values in zip(*[heads for _, heads in past], occupancy[name], strict=True)]
        num_keys = seen.num_keys[name]
        reports.append(
            LayerReport(
                name=name,
                num_tokens=num_keys,
                cut=absolute_cut(branch.threshold, num_keys, branch.relative),
                can_empty=can_empty(branch.threshold, num_keys, branch.relative),
                occupancy=occupancy[name],
                peak=peak,
                opened=max(peak) > 0,
                history=past,
            )
        )
    return reports


def same_tensors(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    """Whether two state dicts have the same keys and bitwise equal tensors."""
    return list(first) == list(second) and all(torch.equal(first[name], second[name]) for name in first)


def advise(
    verdict: str,
    lost: float,
    unit: str,
    layers: Sequence[LayerReport],
    quadratic: list[str] | None,
    equal: bool,
    finite: bool,
) -> list[str]:
    """What to do, or to know, a sentence or two each."""
    advice = []
    never = [layer.name for layer in layers if not layer.opened]
    stuck = [layer.name for layer in layers if not layer.can_empty]
    open_now = [layer.name for layer in layers if max(layer.occupancy) > 0]
    if never:
        advice.append(
            f"The mask never opened in {len(never)} of {len(layers)} attentions ({', '.join(never[:4])}): their branch "
            "had no part in training, and an empty mask there proves nothing. A lower threshold would let it in."
        )
    if stuck:
        advice.append(
            f"The mask cannot become empty in {', '.join(stuck[:4])}: there are too few tokens for this threshold. Use "
            "a relative threshold of at least 1, or a schedule that ends at 1."
        )
    if quadratic:
        advice.append(f"The castled network still makes an N x N tensor: {quadratic[0]}.")
    if quadratic is None:
        advice.append("The castled network takes no larger picture: that it makes no N x N tensor is not proven.")
    if not equal:
        advice.append("The castled network has other weights than the one before it.")
    if not finite:
        advice.append("Outputs of the first or of the castled network are not finite: there is nothing to compare.")
    if verdict == "not yet" and equal and finite and not quadratic:
        said = f"Castling now would cost {lost:.2f} {unit}".rstrip() + "."
        closing = "training.threshold={kind: linear, start: 0.02, end: 1.0, until: 0.8}"
        advice.append(f"{said} Train on with a threshold that closes, such as {closing}." if layers else said)
    elif verdict == "cheap" and open_now:
        advice.append(
            f"The mask is still open in {', '.join(open_now[:4])}; with a threshold that closes, castling becomes free."
        )
    return advice
