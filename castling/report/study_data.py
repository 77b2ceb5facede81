"""A study as data: scores by variant and seed, from its rows. Of a network with a branch the castled form counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from castling.measure.metric import Metric

Row = Mapping[str, str]
Points = Sequence[tuple[float, float]]
BEFORE = ("with branch", "converted")  # networks that have a castled form beside them
CASTLED, AS_TRAINED, VALIDATION, TEST = "castled", "as trained", "validation", "test"


@dataclass(frozen=True)
class VariantData:
    """What a study knows of one variant. Scores are by seed, in the unit that the metric is shown in.

    Args:
        name: its name.
        note: what it is, in a few words.
        opponents: the variants that it is compared with.
        paper: the paper's figure for it; None where it has none.
        scores: what counts on the validation pictures.
        tested: the same on the test pictures, where they were looked at.
        with_branch: what it reached before it was castled.
        lost: what castling cost.
        verdicts: the verdict of each certificate.
        curves: the score at each evaluation, over epochs.
        gaps: what castling would have cost at each evaluation, over epochs.
        masks: how full the fullest head of every layer was at each logged step, by layer.
        macs: multiply-accumulates of a picture in the form for inference.
    """

    name: str
    note: str = ""
    opponents: tuple[str, ...] = ()
    paper: float | None = None
    scores: dict[int, float] = field(default_factory=dict)
    tested: dict[int, float] = field(default_factory=dict)
    with_branch: dict[int, float] = field(default_factory=dict)
    lost: dict[int, float] = field(default_factory=dict)
    verdicts: dict[int, str] = field(default_factory=dict)
    curves: dict[int, Points] = field(default_factory=dict)
    gaps: dict[int, Points] = field(default_factory=dict)
    masks: dict[int, dict[str, Points]] = field(default_factory=dict)
    macs: int | None = None


@dataclass(frozen=True)
class StudyData:
    """What a study has come to.

    Args:
        name: its name.
        title: a few words.
        question: what is to be found out.
        budget: how much training each run got, in words.
        metric: the deciding metric; its name, unit and direction are what matters.
        variants: what is compared, in the study's order.
        paper_place: where the paper's figures are from.
        missing: the runs that are not done, by name, with the reason where one failed.
        facts: where it was measured, by name.
    """

    name: str
    title: str
    question: str
    budget: str
    metric: Metric
    variants: Sequence[VariantData]
    paper_place: str = ""
    missing: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def measured(self) -> list[VariantData]:
        """The variants of which a run is done."""
        return [variant for variant in self.variants if variant.scores]


def last_rows(rows: Iterable[Row], key: Sequence[str]) -> list[Row]:
    """Of rows with the same cells in the columns of the key the last one, which is that of the newest training."""
    found: dict[tuple[str, ...], Row] = {}
    for row in rows:
        place = tuple(row[column] for column in key)
        found.pop(place, None)
        found[place] = row
    return list(found.values())


def fill(variant: VariantData, rows: Sequence[Row], curves: Sequence[Row], metric: Metric) -> VariantData:
    """Add to a variant what its rows say.

    Args:
        variant: name and what else is known of it.
        rows: rows of results, of any variants.
        curves: rows of curves, of any variants.
        metric: the deciding metric.
    """
    mine = last_rows((row for row in rows if row["variant"] == variant.name), ("seed", "split", "network"))
    filled: dict[str, Any] = {
        name: dict(getattr(variant, name)) for name in ("scores", "tested", "with_branch", "lost")
    }
    verdicts, macs = dict(variant.verdicts), variant.macs
    for row in mine:
        seed, score = int(row["seed"]), metric.scale * float(row[metric.name])
        if row["network"] in BEFORE:
            if row["split"] == VALIDATION:
                filled["with_branch"][seed] = score
        elif row["network"] in (CASTLED, AS_TRAINED):
            filled["scores" if row["split"] == VALIDATION else "tested"][seed] = score
            macs = int(row["macs"])
            if row["network"] == CASTLED:
                verdicts[seed] = row["verdict"]
    before, after = filled["with_branch"], filled["scores"]
    filled["lost"] |= {seed: _lost(before[seed], after[seed], metric) for seed in before if seed in after}
    reached, gaps = _curves(variant.name, curves, metric)
    return replace(variant, **filled, verdicts=verdicts, curves=reached, gaps=gaps, macs=macs)


def _lost(before: float, after: float, metric: Metric) -> float:
    return before - after if metric.higher_is_better else after - before


def _curves(name: str, rows: Sequence[Row], metric: Metric) -> tuple[dict[int, Points], dict[int, Points]]:
    """What counts at each evaluation, and how much more there was before castling, by seed."""
    mine = last_rows((row for row in rows if row["variant"] == name), ("seed", "network", "step"))
    reached: dict[int, Points] = {}
    gaps: dict[int, Points] = {}
    for seed in sorted({int(row["seed"]) for row in mine}):
        scores: dict[str, dict[float, float]] = {CASTLED: {}, AS_TRAINED: {}}
        for row in mine:
            if int(row["seed"]) == seed:
                scores[row["network"]][float(row["epoch"])] = metric.scale * float(row[metric.name])
        before, castled = scores[AS_TRAINED], scores[CASTLED]
        reached[seed] = sorted((castled or before).items())
        if castled:
            gaps[seed] = [(epoch, _lost(before[epoch], castled[epoch], metric)) for epoch in sorted(castled)]
    return reached, gaps
