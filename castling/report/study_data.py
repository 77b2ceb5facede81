"""A study as data: scores by variant and seed, read from its rows, and what follows from them.

Of a network with a branch the castled form counts; differences are of the same seeds, and say by how much a variant is
better, whatever the direction of the metric.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from castling.measure.metric import Metric
from castling.measure.statistics import Estimate, estimate, rank_correlation, sample_deviation

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
    filled = {name: dict[int, Any](getattr(variant, name)) for name in ("scores", "tested", "with_branch", "lost")}
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
                filled["lost"][seed], verdicts[seed] = float(row["lost"]), row["verdict"]
    return VariantData(
        variant.name,
        variant.note,
        variant.opponents,
        variant.paper,
        **filled,
        verdicts=verdicts,
        curves=_curves(variant.name, curves, metric),
        masks=variant.masks,
        macs=macs,
    )


def _curves(name: str, rows: Sequence[Row], metric: Metric) -> dict[int, Points]:
    mine = last_rows((row for row in rows if row["variant"] == name), ("seed", "network", "step"))
    found: dict[int, Points] = {}
    for seed in sorted({int(row["seed"]) for row in mine}):
        of_seed = [row for row in mine if int(row["seed"]) == seed]
        counts = CASTLED if any(row["network"] == CASTLED for row in of_seed) else AS_TRAINED
        chosen = sorted((row for row in of_seed if row["network"] == counts), key=lambda row: float(row["epoch"]))
        found[seed] = [(float(row["epoch"]), metric.scale * float(row[metric.name])) for row in chosen]
    return found


@dataclass(frozen=True)
class Difference:
    """By how much a variant is better than another, over the seeds that both have.

    Args:
        variant: the one.
        other: the other.
        better_by: the mean with its interval, in the unit of differences; below 0 where it is worse.
        seeds: the seeds.
    """

    variant: str
    other: str
    better_by: Estimate
    seeds: tuple[int, ...]

    @property
    def said(self) -> str:
        """In a word: `better`, `worse`, or `open` where the interval has zero in it or there is none."""
        if not self.better_by.excludes_zero:
            return "open"
        return "better" if self.better_by.mean > 0 else "worse"


def differences(study: StudyData, tested: bool = False) -> list[Difference]:
    """All comparisons that a study asks for and has seeds for.

    Args:
        study: the study.
        tested: whether the test pictures count, instead of those of validation.
    """
    by_name = {variant.name: variant for variant in study.variants}
    sign = 1.0 if study.metric.higher_is_better else -1.0
    found = []
    for variant in study.variants:
        for other in variant.opponents:
            ours, theirs = (one.tested if tested else one.scores for one in (variant, by_name[other]))
            seeds = sorted(ours.keys() & theirs.keys())
            if seeds:
                better = estimate([sign * (ours[seed] - theirs[seed]) for seed in seeds])
                found.append(Difference(variant.name, other, better, tuple(seeds)))
    return found


@dataclass(frozen=True)
class Agreement:
    """How far the order of the variants is that of the paper.

    Args:
        variants: those that both have.
        correlation: Spearman's, of the means; None for fewer than three.
        by_seed: the same of each seed alone, where all variants have it.
    """

    variants: tuple[str, ...]
    correlation: float | None
    by_seed: dict[int, float]


def agreement_with_paper(study: StudyData) -> Agreement | None:
    """The rank correlation with the paper's figures; None where it has none of these variants."""
    both = [variant for variant in study.measured if variant.paper is not None]
    if not both:
        return None
    sign = 1.0 if study.metric.higher_is_better else -1.0
    paper = [variant.paper or 0.0 for variant in both]

    def correlation(score: Callable[[VariantData], float]) -> float | None:
        return rank_correlation([sign * score(variant) for variant in both], paper)

    seeds = set.intersection(*(set(variant.scores) for variant in both))
    found = {seed: correlation(lambda variant, seed=seed: variant.scores[seed]) for seed in sorted(seeds)}  # type: ignore[misc]
    return Agreement(
        tuple(variant.name for variant in both),
        correlation(lambda variant: fmean(variant.scores.values())),
        {seed: value for seed, value in found.items() if value is not None},
    )


def to_json(study: StudyData) -> dict[str, Any]:
    """What a study has come to, as plain values."""

    def summary(scores: Mapping[int, float]) -> dict[str, Any] | None:
        if not scores:
            return None
        values = list(scores.values())
        return {"mean": fmean(values), "deviation": sample_deviation(values), "by_seed": dict(scores)}

    agreement = agreement_with_paper(study)
    return {
        "study": study.name,
        "question": study.question,
        "metric": {"name": study.metric.name, "unit": study.metric.unit, "better": _direction(study.metric)},
        "variants": {
            variant.name: {
                "validation": summary(variant.scores),
                "test": summary(variant.tested),
                "with branch": summary(variant.with_branch),
                "lost": summary(variant.lost),
                "verdicts": dict(variant.verdicts),
                "paper": variant.paper,
                "macs": variant.macs,
            }
            for variant in study.variants
        },
        "differences": {
            split: [
                {**vars(one), "better_by": vars(one.better_by), "said": one.said}
                for one in differences(study, tested=split == TEST)
            ]
            for split in (VALIDATION, TEST)
        },
        "paper": None if agreement is None else vars(agreement),
        "missing": dict(study.missing),
        "facts": dict(study.facts),
    }


def _direction(metric: Metric) -> str:
    return "higher" if metric.higher_is_better else "lower"
