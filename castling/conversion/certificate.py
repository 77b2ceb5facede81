"""The certificate: what the switch cost, measured on the trained model and real pictures.

The paper drops the branch once its mask is empty. This says whether it is: per layer and head, with its history, and by
outputs with the branch and without it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from castling.attention import branches, can_empty
from castling.attention.threshold import absolute_cut
from castling.conversion.switch import castle
from castling.measure.macs import count_macs, count_parameters
from castling.measure.occupancy import Occupancy, record_occupancy
from castling.measure.quadratic import quadratic_tensors

Verdict = Literal["free", "cheap", "not yet"]
History = Sequence[tuple[int, Occupancy]]


@dataclass(frozen=True)
class LayerReport:
    """One attention.

    Args:
        name: in the model.
        num_tokens: keys that it sees.
        cut: attention weight at or below which an entry is dropped.
        can_empty: whether any attention over so many keys can have an empty mask under this cut.
        occupancy: share of entries that survive, per head, over the pictures.
        peak: the largest occupancy in the history, per head; today's where there is no history.
        opened: whether the mask ever let anything through.
        history: steps with the mean occupancy over heads.
    """

    name: str
    num_tokens: int
    cut: float
    can_empty: bool
    occupancy: list[float]
    peak: list[float]
    opened: bool
    history: list[tuple[int, float]]


@dataclass(frozen=True)
class Certificate:
    """What castling costs.

    Args:
        verdict: `free` (outputs identical), `cheap` (the gap is within the tolerance) or `not yet`.
        tolerance: largest gap in percentage points that is cheap.
        metric: name of the metric.
        with_branch: its value with the branch, a share.
        castled: its value without.
        gap: percentage points lost.
        agreement: share of pictures with the same prediction.
        num_examples: how many pictures.
        largest_difference: of any two logits.
        median_difference: of all logits.
        state_dict_equal: same keys and bitwise equal tensors on both sides.
        parameters: of the model, the same on both sides.
        macs_with_branch: for one picture.
        macs_castled: for one picture.
        quadratic_tensors: operators of the castled model whose result is N x N; none is the proof.
        layers: one report per attention.
        advice: what to do, or to know.
    """

    verdict: Verdict
    tolerance: float
    metric: str
    with_branch: float
    castled: float
    gap: float
    agreement: float
    num_examples: int
    largest_difference: float
    median_difference: float
    state_dict_equal: bool
    parameters: int
    macs_with_branch: int
    macs_castled: int
    quadratic_tensors: list[str]
    layers: list[LayerReport] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def certify(
    model: nn.Module,
    loader: Iterable[Any],
    tolerance: float = 0.5,
    history: History = (),
) -> Certificate:
    """Measure what castling a classifier costs.

    Args:
        model: trained, with its branches; left as it is.
        loader: yields batches with labels, as mappings with `image` and `target` or as pairs; targets below 0 do not
            count.
        tolerance: largest loss in percentage points of accuracy that is still cheap.
        history: occupancies during training, from step 0, as the log has them.

    Raises:
        ValueError: if the model has no branch to drop, the tolerance is negative, or there is nothing to measure on.

    Example:
        >>> import timm, castling
        >>> options = {"img_size": 32, "patch_size": 4, "embed_dim": 32, "depth": 1, "num_heads": 2, "num_classes": 10}
        >>> model = timm.create_model("castling_deit_tiny_patch16_224", **options)
        >>> batches = [(torch.randn(8, 3, 32, 32), torch.arange(8))]
        >>> certify(model, batches).verdict
        'free'
    """
    if not branches(model):
        raise ValueError(f"this {type(model).__name__} has no auxiliary branch: it is castled, or never had one")
    if tolerance < 0:
        raise ValueError(f"tolerance must be at least 0; got {tolerance}")
    model = copy.deepcopy(model).eval()
    without = castle(model)
    seen, image = _compare(model, without, loader)
    layers = _layer_reports(model, seen.occupancy, seen.num_keys, history)
    gap = 100 * (seen.right_with - seen.right_without) / seen.num_examples
    identical = seen.largest_difference == 0
    verdict: Verdict = "free" if identical else "cheap" if gap <= tolerance else "not yet"
    quadratic = _quadratic(without, image, max(seen.num_keys.values()))
    return Certificate(
        verdict=verdict,
        tolerance=tolerance,
        metric="top1",
        with_branch=seen.right_with / seen.num_examples,
        castled=seen.right_without / seen.num_examples,
        gap=gap,
        agreement=seen.agreeing / seen.num_examples,
        num_examples=seen.num_examples,
        largest_difference=seen.largest_difference,
        median_difference=seen.median_difference,
        state_dict_equal=_same_tensors(model.state_dict(), without.state_dict()),
        parameters=count_parameters(without),
        macs_with_branch=count_macs(model, image).total,
        macs_castled=count_macs(without, image).total,
        quadratic_tensors=quadratic,
        layers=layers,
        advice=_advice(verdict, gap, layers, quadratic),
    )


@dataclass
class _Comparison:
    num_examples: int
    right_with: int
    right_without: int
    agreeing: int
    largest_difference: float
    median_difference: float
    occupancy: Occupancy
    num_keys: dict[str, int]


@torch.no_grad()
def _compare(model: nn.Module, without: nn.Module, loader: Iterable[Any]) -> tuple[_Comparison, Tensor]:
    """Both models on all pictures; returns the counts and one picture."""
    right_with = right_without = agreeing = count = 0
    differences: list[Tensor] = []
    image: Tensor | None = None
    device = next(model.parameters()).device
    with record_occupancy(model) as record:
        for batch in loader:
            images, targets = (batch["image"], batch["target"]) if isinstance(batch, Mapping) else batch
            readable = targets >= 0
            images, targets = images[readable].to(device), targets[readable].to(device)
            if not len(images):
                continue
            image = images[:1] if image is None else image
            logits, castled_logits = model(images).float(), without(images).float()
            differences.append((logits - castled_logits).abs().flatten().cpu())
            choice, castled_choice = logits.argmax(-1), castled_logits.argmax(-1)
            right_with += int((choice == targets).sum())
            right_without += int((castled_choice == targets).sum())
            agreeing += int((choice == castled_choice).sum())
            count += len(images)
    if image is None:
        raise ValueError("there was no readable picture to certify the model on")
    difference = torch.cat(differences)
    largest, median = float(difference.max()), float(difference.median())
    return (
        _Comparison(count, right_with, right_without, agreeing, largest, median, record.mean(), record.num_keys),
        image,
    )


def _layer_reports(
    model: nn.Module, occupancy: Occupancy, num_keys: dict[str, int], history: History
) -> list[LayerReport]:
    reports = []
    for name, branch in branches(model).items():
        past = [(step, heads[name]) for step, heads in history if name in heads]
        peak = [max(values) for values in zip(*[heads for _, heads in past], occupancy[name], strict=True)]
        reports.append(
            LayerReport(
                name=name,
                num_tokens=num_keys[name],
                cut=absolute_cut(branch.threshold, num_keys[name], branch.relative),
                can_empty=can_empty(branch.threshold, num_keys[name], branch.relative),
                occupancy=occupancy[name],
                peak=peak,
                opened=max(peak) > 0,
                history=[(step, sum(heads) / len(heads)) for step, heads in past],
            )
        )
    return reports


def _quadratic(model: nn.Module, image: Tensor, num_tokens: int) -> list[str]:
    """N x N results in the castled model, at a size at which N exceeds every width of the network.

    At the training size a weight matrix may look like an attention map; a larger picture tells them apart.
    """
    widest = max(max(parameter.shape) for parameter in model.parameters())
    num_patches = max(1, num_tokens - 1)  # one of them may be a class token, which does not grow
    factor = 2 ** math.ceil(math.log2(max(1.0, math.sqrt((widest + 1) / num_patches))))
    large = nn.functional.interpolate(image, scale_factor=float(factor))
    with torch.no_grad():
        return quadratic_tensors(lambda: model(large), num_patches * factor**2)


def _same_tensors(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    return list(first) == list(second) and all(torch.equal(first[name], second[name]) for name in first)


def _advice(verdict: Verdict, gap: float, layers: list[LayerReport], quadratic: list[str]) -> list[str]:
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
    if verdict == "not yet":
        advice.append(
            f"Castling now would cost {gap:.2f} points. Train on with a threshold that closes, such as "
            "training.threshold={kind: linear, start: 0.02, end: 1.0, until: 0.8}."
        )
    elif verdict == "cheap" and open_now:
        advice.append(
            f"The mask is still open in {', '.join(open_now[:4])}; with a threshold that closes, castling becomes free."
        )
    if quadratic:
        advice.append(f"The castled model still makes an N x N tensor: {quadratic[0]}.")
    return advice
