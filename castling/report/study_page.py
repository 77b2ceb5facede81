"""The results of a study as one HTML page, in the look of a run's: what was asked, what came out, how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import fmean

from castling.measure.statistics import Estimate, sample_deviation
from castling.report.page_template import PAGE, card, facts_table, prose, table
from castling.report.run_figures import RunFigure
from castling.report.run_page import figures_section
from castling.report.run_text import MISSING, amount
from castling.report.study_comparison import Difference, agreement_with_paper, differences
from castling.report.study_data import StudyData, VariantData
from castling.report.study_figures import describe_agreement, draw_study


def write_study(study: StudyData, folder: Path) -> Path:
    """Write the page, named like the study, and its pictures as PNG under figures/; returns the page.

    Args:
        study: the study.
        folder: the folder to write into; files of these names are replaced.
    """
    figures = draw_study(study, folder / "figures" / study.name)
    page = folder / f"{study.name}.html"
    page.write_text(render_study(study, figures), encoding="utf-8")
    return page


def render_study(study: StudyData, figures: Sequence[RunFigure] = ()) -> str:
    """The page as text; every string that comes from a file is escaped."""
    headline, sentence = _headline(study)
    sections = [
        f'<section class="verdict none"><strong>{escape(headline)}</strong><p>{prose(sentence)}</p></section>',
        f'<section class="cards">{"".join(card(*words) for words in _cards(study))}</section>',
        _missing(study),
        figures_section(figures) if figures else "",
        f"<h2>Results</h2>{_results(study)}" if study.measured else "",
        _differences(study),
        _paper(study),
        f"<h2>Every seed</h2>{_seeds(study)}" if study.measured else "",
        f'<h2>Environment</h2><div class="box">{facts_table(study.facts)}</div>' if study.facts else "",
    ]
    return PAGE.substitute(
        title=escape(study.title),
        headline=escape(study.title),
        subtitle=escape(" · ".join(filter(None, (f"study {study.name}", study.budget)))),
        body="\n".join(filter(None, sections)),
        verb="study",
        sources=escape(study.name),
    )


def spread(scores: Mapping[int, float]) -> str:
    """A mean with its standard deviation.

    Example:
        >>> spread({0: 80.0, 1: 82.0}), spread({0: 80.0})
        ('81.00 ± 1.41', '80.00')
    """
    if not scores:
        return MISSING
    values = list(scores.values())
    deviation = sample_deviation(values)
    return f"{fmean(values):.2f}" + ("" if deviation is None else f" ± {deviation:.2f}")


def interval(found: Estimate) -> str:
    """A mean with its interval.

    Example:
        >>> interval(Estimate(1.25, 0.5, 2.0, 3)), interval(Estimate(-1.0, None, None, 1))
        ('+1.25 (+0.50 to +2.00)', '-1.00 (one seed)')
    """
    if found.low is None or found.high is None:
        return f"{found.mean:+.2f} (one seed)"
    return f"{found.mean:+.2f} ({found.low:+.2f} to {found.high:+.2f})"


def _headline(study: StudyData) -> tuple[str, str]:
    """The question, and what can be said: comparisons whose interval excludes zero."""
    pairs = differences(study)
    sure = [pair for pair in pairs if pair.said != "open"]
    if not pairs:
        return study.question.strip(), "Nothing can be compared yet."
    seeds = sorted({len(pair.seeds) for pair in pairs})
    of = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    return study.question.strip(), (
        f"{len(sure)} of {len(pairs)} comparisons have an interval that excludes zero, over {of} seeds each. One in "
        "twenty such intervals misses by chance."
    )


def _cards(study: StudyData) -> list[tuple[str, str, str]]:
    """Label, value and note of each key figure."""
    runs = sum(len(variant.scores) for variant in study.variants)
    cards = [("Runs", f"{runs:,}", f"{len(study.measured)} of {len(study.variants)} variants")]
    sign = 1 if study.metric.higher_is_better else -1
    ranked = sorted(study.measured, key=lambda variant: sign * fmean(variant.scores.values()), reverse=True)
    if ranked:
        note = f"{ranked[0].name}, {study.metric.name}, mean on validation"
        cards.append(("Best", f"{fmean(ranked[0].scores.values()):.2f}", note))
        deviations = [one for variant in ranked if (one := sample_deviation(list(variant.scores.values()))) is not None]
        if deviations:
            note = f"{study.metric.difference_unit} of standard deviation, mean of the variants"
            cards.append(("Seeds differ by", f"{fmean(deviations):.2f}", note))
    agreement = agreement_with_paper(study)
    if agreement and agreement.correlation is not None:
        cards.append(("The paper's order", f"{agreement.correlation:.2f}", "rank correlation with its figures"))
    return cards


def _missing(study: StudyData) -> str:
    lines = "".join(f"<li>{escape(name)}: {escape(reason)}</li>" for name, reason in study.missing.items())
    return f"<h2>Not done</h2><ul class=advice>{lines}</ul>" if lines else ""


def _results(study: StudyData) -> str:
    unit = f", {study.metric.unit}" if study.metric.unit else ""
    tested = any(variant.tested for variant in study.variants)
    columns = ["variant", "what it is", f"{study.metric.name}{unit}", *(["test"] if tested else []), "seeds"]
    columns += ["with the branch", "lost by castling", "verdicts", "MACs"]
    rows = [
        (
            variant.name,
            variant.note,
            spread(variant.scores),
            *([spread(variant.tested)] if tested else []),
            str(len(variant.scores)),
            spread(variant.with_branch),
            spread(variant.lost),
            _verdicts(variant),
            MISSING if variant.macs is None else amount(variant.macs),
        )
        for variant in study.measured
    ]
    note = "Means with the standard deviation over seeds; of a network with a branch, castled."
    return f'<p class="soft">{note}</p>{table(columns, rows, num_text=2)}'


def _verdicts(variant: VariantData) -> str:
    counts: dict[str, int] = {}
    for verdict in variant.verdicts.values():
        counts[verdict] = counts.get(verdict, 0) + 1
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items()) or MISSING


def _differences(study: StudyData) -> str:
    pairs = {split: differences(study, tested=split == "test") for split in ("validation", "test")}
    if not pairs["validation"]:
        return ""
    on_test = {(pair.variant, pair.other): pair for pair in pairs["test"]}
    unit = study.metric.difference_unit
    columns = ["variant", "compared with", f"better by{f', {unit}' if unit else ''} (95 % interval)", "", "seeds"]
    columns += ["on test"] if on_test else []

    def tested(pair: Difference) -> list[str]:
        found = on_test.get((pair.variant, pair.other))
        return [] if not on_test else [MISSING if found is None else interval(found.better_by)]

    rows = [
        (pair.variant, pair.other, interval(pair.better_by), pair.said, str(len(pair.seeds)), *tested(pair))
        for pair in pairs["validation"]
    ]
    note = "Differences of equal seeds, with Student's interval; open where zero is in it."
    return f'<h2>Differences</h2><p class="soft">{note}</p>{table(columns, rows, num_text=2)}'


def _paper(study: StudyData) -> str:
    both = [variant for variant in study.measured if variant.paper is not None]
    if not both:
        return ""
    rows = [(variant.name, f"{variant.paper:g}", spread(variant.scores)) for variant in both]
    columns = ("variant", f"the paper: {study.paper_place}", f"ours: {study.metric.name}")
    return f"<h2>Beside the paper</h2><p>{prose(describe_agreement(study))}</p>{table(columns, rows)}"


def _seeds(study: StudyData) -> str:
    seeds = sorted({seed for variant in study.measured for seed in variant.scores})
    rows = [
        (variant.name, *(f"{variant.scores[seed]:.2f}" if seed in variant.scores else MISSING for seed in seeds))
        for variant in study.measured
    ]
    return table(("variant", *(f"seed {seed}" for seed in seeds)), rows)
