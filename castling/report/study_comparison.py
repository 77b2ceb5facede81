"""What follows from the scores of a study: differences of variants, and how far their order is that of the paper.

Differences are of the same seeds, and say by how much a variant is better, whatever the direction of the metric.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from castling.measure.metric import Metric
from castling.measure.statistics import Estimate, estimate, rank_correlation, sample_deviation
from castling.report.study_data import TEST, VALIDATION, StudyData, VariantData


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
