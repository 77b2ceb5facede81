"""The report of a run as one HTML page: verdict, key figures, pictures, certificate, configuration, environment.

The page needs nothing but itself: style and pictures are inside, there are no scripts, and it can be sent as a file.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from castling.report.page_template import PAGE
from castling.report.run_data import CASTLED, SOFTMAX, RunData, lookup
from castling.report.run_figures import RunFigure, draw_run
from castling.report.run_text import (
    MISSING,
    amount,
    duration,
    metric_name,
    num_tokens_at,
    percent,
    run_labels,
    verdict,
)


def write_report(runs: Sequence[RunData], folder: Path, title: str | None = None) -> list[Path]:
    """Write report.html, and its pictures as PNG under figures/.

    Args:
        runs: the run that is reported, then those that stand beside it, such as its softmax baseline.
        folder: made where needed; files of these names are replaced.
        title: headline; by default model and data.

    Returns:
        The files written, the page first.

    Raises:
        ValueError: without runs.
    """
    if not runs:
        raise ValueError("runs is empty: there is nothing to report")
    figures = draw_run(runs, folder / "figures")
    page = folder / "report.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(render_page(runs, figures, title), encoding="utf-8")
    return [page, *(figure.path for figure in figures)]


def render_page(runs: Sequence[RunData], figures: Sequence[RunFigure], title: str | None = None) -> str:
    """The page as text; every string that comes from a file is escaped."""
    run = runs[0]
    title = title or _default_title(run)
    colour, headline, sentence = verdict(run)
    sections = [
        f'<section class="verdict {colour}"><strong>{escape(headline)}</strong><p>{_prose(sentence)}</p></section>',
        f'<section class="cards">{"".join(_card(*card) for card in _cards(runs))}</section>',
        _figures(figures),
        _certificate(run),
        _runs(runs) if len(runs) > 1 else "",
        _configuration(runs),
        _environment(run),
    ]
    return PAGE.substitute(
        title=escape(title),
        headline=escape(title).replace("_", "_<wbr>"),  # long names break there
        subtitle=escape(_subtitle(run)),
        body="\n".join(filter(None, sections)),
        sources=escape(", ".join(run_labels(runs))),
    )


def _default_title(run: RunData) -> str:
    model, data = lookup(run.config, "model.name"), lookup(run.config, "data.source")
    return " on ".join(str(part) for part in (model, data) if part) or run.name


def _subtitle(run: RunData) -> str:
    summary = run.summary or {}
    parts = [f"run {run.name}", str(summary.get("status", "not finished"))]
    latest = max((*run.steps[-1:], *run.evals[-1:]), key=lambda record: record["step"], default=None)
    if latest:
        parts.append(f"{latest['step']:,} steps, {latest['epoch']:.3g} epochs")
    if "seconds" in summary:
        parts.append(duration(summary["seconds"]))
    for key, words in (("skipped_steps", "steps skipped"), ("rollbacks", "rollbacks")):
        if summary.get(key):
            parts.append(f"{summary[key]} {words}")
    if run.num_quarantined:
        parts.append(f"{run.num_quarantined} unreadable pictures left out")
    return " · ".join(parts)


def _cards(runs: Sequence[RunData]) -> list[tuple[str, str, str]]:
    """Label, value and note of each key figure; a dash and what to do where a number is missing."""
    run, certificate = runs[0], runs[0].certificate or {}
    with_branch, castled = run.score("model"), run.score("castled")
    baseline = next((other for other in runs[1:] if other.is_baseline), None)
    certified = "as certified" if certificate else "latest evaluation"
    metric = metric_name(run)
    cards = [("Softmax" if run.is_baseline else "With branch", percent(with_branch, 2), f"{metric}, {certified}")]
    if not run.is_baseline:
        gap = MISSING if with_branch is None or castled is None else f"{100 * (with_branch - castled) + 0.0:.2f}"
        cards += [
            ("Castled", percent(castled, 2), f"{metric}, {certified}"),
            ("Castling gap", gap, "points lost by castling"),
            (
                "Baseline",
                percent(baseline.score("model") if baseline else None, 2),
                f"softmax, {metric}" if baseline else "give a softmax run as well",
            ),
        ]
    if certificate:
        before, after = certificate["macs_with_branch"], certificate["macs_castled"]
        cards += [
            ("MACs, castled", amount(after), f"{amount(before)} with the branch"),
            ("Parameters", amount(certificate["parameters"]), "the same with the branch"),
        ]
    rows = (run.speed or {}).get("rows") or []
    if rows:
        times, size = rows[-1]["milliseconds"], rows[-1]["size"]
        tokens = num_tokens_at(run, size)
        note = f"over softmax at {size} px" + (f", {tokens:,} tokens" if tokens else "")
        cards.append(("Speed-up", f"{times[SOFTMAX] / times[CASTLED]:.1f}x", note))
    elif not run.is_baseline:
        cards.append(("Speed-up", MISSING, "not measured"))
    return cards


def _card(label: str, value: str, note: str) -> str:
    return (
        f'<div class="card"><div class="label">{escape(label)}</div><div class="value">{escape(value)}</div>'
        f'<div class="note">{escape(note)}</div></div>'
    )


def _figures(figures: Sequence[RunFigure]) -> str:
    if not figures:
        return '<h2>Figures</h2><p class="soft">Nothing is logged yet.</p>'
    shown = []
    for figure in figures:
        data, title, caption = base64.b64encode(figure.path.read_bytes()).decode(), figure.title, figure.caption
        shown.append(
            f'<figure><h3>{escape(title)}</h3><img alt="{escape(title)}" src="data:image/png;base64,{data}">'
            f"<figcaption>{_prose(caption)}</figcaption></figure>"
        )
    return f'<h2>Figures</h2><section class="figures">{"".join(shown)}</section>'


def _certificate(run: RunData) -> str:
    """Advice, the table of layers, and what else was checked."""
    certificate = run.certificate
    if certificate is None:
        return ""
    advice = "".join(f"<li>{escape(str(line))}</li>" for line in certificate.get("advice") or [])
    rows = [
        (
            layer["name"],
            f"{layer['num_tokens']:,}",
            f"{layer['cut']:.3g}",
            "yes" if layer["can_empty"] else "no",
            percent(max(layer["peak"], default=None), 2),
            percent(max(layer["occupancy"], default=None), 2),
            "yes" if layer["opened"] else "never",
        )
        for layer in certificate["layers"]
    ]
    columns = ("layer", "tokens", "cut", "can empty", "peak occupancy", "final occupancy", "opened")
    quadratic = certificate.get("quadratic_tensors") or []
    facts = {
        "Examples compared": f"{certificate['num_examples']:,}",
        "Same answer": percent(certificate["agreement"], 2),
        "Largest difference of the outputs": f"{certificate['largest_difference']:.3g}",
        "Median difference of the outputs": f"{certificate['median_difference']:.3g}",
        "Same state dict": "yes" if certificate["state_dict_equal"] else "no",
        "Tensors of N x N when castled": ", ".join(map(str, quadratic)) or "none",
    }
    return (
        f"<h2>Certificate</h2>{f'<ul class=advice>{advice}</ul>' if advice else ''}"
        '<p class="soft">Occupancy is the share of entries that survive the mask, of the fullest head. A mask can '
        "become empty where its cut is at least one over the number of tokens.</p>"
        f'{_table(columns, rows)}<div class="box">{_facts(facts)}</div>'
    )


def _runs(runs: Sequence[RunData]) -> str:
    rows = []
    for run, label in zip(runs, run_labels(runs), strict=True):
        seconds = (run.summary or {}).get("seconds")
        rows.append(
            (
                label,
                str(lookup(run.config, "model.name") or MISSING),
                "softmax" if run.is_baseline else str(lookup(run.config, "model.kernel") or "castling"),
                percent(run.score("model"), 2),
                percent(run.score("castled"), 2),
                f"{run.evals[-1]['epoch']:g}" if run.evals else MISSING,
                MISSING if seconds is None else duration(seconds),
            )
        )
    columns = ("run", "model", "attention", metric_name(runs[0]), "castled", "epochs", "time")
    return f"<h2>Runs</h2>{_table(columns, rows, num_text=3)}"


def _configuration(runs: Sequence[RunData]) -> str:
    shown = [
        f'<details class="box"><summary>{escape(label)}</summary><pre>{escape(run.config_text)}</pre></details>'
        for run, label in zip(runs, run_labels(runs), strict=True)
    ]
    return f"<h2>Configuration</h2>{''.join(shown)}"


def _environment(run: RunData) -> str:
    """Where the run was trained, and where its speed was measured."""
    measured = (run.speed or {}).get("environment")
    boxes = [
        f'<div><h3>{heading}</h3><div class="box">{_facts(facts)}</div></div>'
        for heading, facts in (("Training", run.environment), ("Speed", measured))
        if facts
    ]
    return f'<h2>Environment</h2><div class="two">{"".join(boxes)}</div>' if boxes else ""


def _prose(text: str) -> str:
    """Escaped text in which no line ends between a number and its percent sign."""
    return escape(text).replace(" %", "&nbsp;%")


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], num_text: int = 1) -> str:
    """A table in a box of its own; the first columns hold words, the others numbers."""

    def line(tag: str, cells: Sequence[str]) -> str:
        marks = [' class="text"' if index < num_text else "" for index in range(len(cells))]
        shown = [f"<{tag}{mark}>{escape(cell)}</{tag}>" for mark, cell in zip(marks, cells, strict=True)]
        return f"<tr>{''.join(shown)}</tr>"

    body = "".join(line("td", row) for row in rows)
    return f'<div class="box"><table><thead>{line("th", columns)}</thead><tbody>{body}</tbody></table></div>'


def _facts(facts: dict[str, Any]) -> str:
    lines = "".join(f"<tr><th>{escape(key)}</th><td>{escape(str(value))}</td></tr>" for key, value in facts.items())
    return f'<table class="facts">{lines}</table>'
