"""The results of a study as a Markdown table, for README and docs: what its page says, in fewer words."""

from __future__ import annotations

from castling.report.marks import markdown_table
from castling.report.run_text import MISSING
from castling.report.study_comparison import Difference, differences
from castling.report.study_data import StudyData, VariantData
from castling.report.study_page import interval, spread

MARK = "study "  # in front of the study's name


def study_markdown(study: StudyData) -> str:
    """A line for each measured variant: mean and spread over seeds, and by how much it is better, with the interval.

    Args:
        study: the study. Where the test pictures were looked at, they count.
    """
    tested = any(variant.tested for variant in study.variants)
    pairs: dict[str, list[Difference]] = {}
    for pair in differences(study, tested):
        pairs.setdefault(pair.variant, []).append(pair)
    unit = study.metric.difference_unit
    scored = f"{study.metric.name}{f', {study.metric.unit}' if study.metric.unit else ''}"
    columns = ["variant", "what it is", scored, "seeds", f"better{f', {unit}' if unit else ''} (95 % interval)"]
    rows = [
        [f"`{variant.name}`", variant.note, spread(scores), str(len(scores)), _compared(pairs.get(variant.name, []))]
        for variant in study.measured
        if (scores := _scores(variant, tested))
    ]
    losses = [lost for variant in study.measured for lost in variant.lost.values()]
    castled = f"; castling lost {max(losses):.2f} {unit} at most" if losses else ""
    seen = "the test pictures" if tested else "validation pictures"
    return f"{markdown_table(columns, rows, num_text=2)}\n\n{study.budget}; on {seen}{castled}."


def _scores(variant: VariantData, tested: bool) -> dict[int, float]:
    return variant.tested if tested else variant.scores


def _compared(pairs: list[Difference]) -> str:
    return "; ".join(f"{interval(pair.better_by)} than `{pair.other}`" for pair in pairs) or MISSING
