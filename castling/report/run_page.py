"""The report of a run as one HTML page: verdict, key figures, pictures, certificate, configuration, environment.

The page needs nothing but itself: style and pictures are inside, there are no scripts, and it can be sent as a file.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from castling.measure.metric import Metric, headlines
from castling.report.page_template import PAGE, card, facts_table, prose, table
from castling.report.run_data import CASTLED, SOFTMAX, RunData
from castling.report.run_figures import RunFigure, draw_run
from castling.report.run_text import (
    MISSING,
    amount,
    duration,
    loss_between,
    metric_name,
    num_tokens_at,
    percent,
    run_labels,
    shown,
    verdict,
)
from castling.training.records import Record


def write_report(
    runs: Sequence[RunData], folder: Path, title: str | None = None, examined: Sequence[RunFigure] = ()
) -> list[Path]:
    """Write report.html, and its pictures as PNG under figures/.

    Args:
        runs: the run that is reported, then those that stand beside it, such as its softmax baseline.
        folder: the folder to write into, made where needed; files of these names are replaced.
        title: headline; by default model and data.
        examined: what the run's task has to show.

    Returns:
        The files written, the page first.

    Raises:
        ValueError: without runs.
    """
    if not runs:
        raise ValueError("runs is empty: there is nothing to report")
    figures = [*draw_run(runs, folder / "figures"), *examined]
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
        f'<section class="verdict {colour}"><strong>{escape(headline)}</strong><p>{prose(sentence)}</p></section>',
        f'<section class="cards">{"".join(card(*words) for words in _cards(runs))}</section>',
        figures_section(figures),
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
        verb="report",
        sources=escape(", ".join(run_labels(runs))),
    )


def _default_title(run: RunData) -> str:
    return f"{run.recipe.settings.model.name}, {run.recipe.task}"


def _subtitle(run: RunData) -> str:
    summary = run.summary or {}
    parts = [f"run {run.name}", str(summary.get("status", "not finished"))]
    logged: list[Record] = [*run.steps[-1:], *run.evals[-1:]]
    latest = max(logged, key=lambda record: record.step, default=None)
    if latest:
        parts.append(f"{latest.step:,} steps, {latest.epoch:.3g} epochs")
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
    note = f"{metric_name(run)}, {'as certified' if certificate else 'latest evaluation'}"
    if run.is_baseline:
        cards = [("Softmax", shown(with_branch), note)]
    else:
        gap = MISSING if with_branch is None or castled is None else loss_between(with_branch, castled)
        cards = [("Converted" if run.is_converted else "With branch", shown(with_branch), note)]
        if run.original_score():
            cards.insert(0, ("Original", shown(run.original_score()), note))
        cards += [
            ("Castled", shown(castled), note),
            ("Castling gap", gap, "lost by castling"),
            (
                "Baseline",
                shown(baseline.score("model") if baseline else None),
                f"softmax, {metric_name(run)}" if baseline else "give a softmax run as well",
            ),
        ]
    if certificate:
        before, after = (list(certificate["networks"].values())[place] for place in (0, -1))
        first = next(iter(certificate["networks"]))
        cards += [
            ("MACs, castled", amount(after["macs"]), f"{amount(before['macs'])} {first}"),
            ("Parameters", amount(after["parameters"]), f"{amount(before['parameters'])} {first}"),
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


def figures_section(figures: Sequence[RunFigure]) -> str:
    """The figures with their captions, inside the page."""
    if not figures:
        return '<h2>Figures</h2><p class="soft">Nothing is logged yet.</p>'
    drawn = []
    for figure in figures:
        data, title, caption = base64.b64encode(figure.path.read_bytes()).decode(), figure.title, figure.caption
        drawn.append(
            f'<figure><h3>{escape(title)}</h3><img alt="{escape(title)}" src="data:image/png;base64,{data}">'
            f"<figcaption>{prose(caption)}</figcaption></figure>"
        )
    return f'<h2>Figures</h2><section class="figures">{"".join(drawn)}</section>'


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
    occupancy = (
        '<p class="soft">Occupancy is the share of entries that survive the mask, of the fullest head. A mask can '
        f"become empty where its cut is at least one over the number of tokens.</p>{table(columns, rows)}"
        if rows
        else ""
    )
    quadratic = certificate["quadratic_tensors"]
    facts = {
        "Examples compared": f"{certificate['num_examples']:,}",
        "Same state dict": "yes" if certificate["state_dict_equal"] else "no",
        "Tensors of N x N when castled": "not told" if quadratic is None else ", ".join(quadratic) or "none",
    }
    return (
        f"<h2>Certificate</h2>{f'<ul class=advice>{advice}</ul>' if advice else ''}"
        f"{_networks(certificate)}{occupancy}"
        f'<div class="box">{facts_table(facts)}</div>'
    )


def _networks(certificate: dict[str, Any]) -> str:
    """A line for each network that was compared, and for each size where there are several."""
    reports = certificate["networks"]
    names = [metric.name for metric in _headlines(next(iter(reports.values()))["metrics"])]
    columns = ("network", *names, "MACs", "parameters", "same answers", "largest difference", "median")
    rows = [
        (
            name,
            *(metric.shown for metric in _headlines(report["metrics"])),
            amount(report["macs"]),
            amount(report["parameters"]),
            percent(report["agreement"], 2),
            *(_number(report[f"{which}_difference"]) for which in ("largest", "median")),
        )
        for name, report in reports.items()
    ]
    compared = table(columns, rows)
    if certificate["sizes"]:
        sized = [
            (f"{name}, {size} px", *(metric.shown for metric in _headlines(metrics)))
            for size, networks in certificate["sizes"].items()
            for name, metrics in networks.items()
        ]
        compared += f"<h3>Other picture sizes</h3>{table(('network', *names), sized)}"
    return compared


def _headlines(metrics: Sequence[dict[str, Any]]) -> list[Metric]:
    return headlines([Metric(**metric) for metric in metrics])


def _runs(runs: Sequence[RunData]) -> str:
    rows = []
    for run, label in zip(runs, run_labels(runs), strict=True):
        seconds = (run.summary or {}).get("seconds")
        rows.append(
            (
                label,
                run.recipe.settings.model.name,
                run.network["attention"],
                shown(run.score("model")),
                shown(run.score("castled")),
                f"{run.evals[-1].epoch:g}" if run.evals else MISSING,
                MISSING if seconds is None else duration(seconds),
            )
        )
    columns = ("run", "model", "attention", metric_name(runs[0]), "castled", "epochs", "time")
    return f"<h2>Runs</h2>{table(columns, rows, num_text=3)}"


def _configuration(runs: Sequence[RunData]) -> str:
    boxes = [
        f'<details class="box"><summary>{escape(label)}</summary><pre>{escape(run.config_text)}</pre></details>'
        for run, label in zip(runs, run_labels(runs), strict=True)
    ]
    return f"<h2>Configuration</h2>{''.join(boxes)}"


def _environment(run: RunData) -> str:
    """Where the run was trained, and where its speed was measured."""
    measured = (run.speed or {}).get("environment")
    boxes = [
        f'<div><h3>{heading}</h3><div class="box">{facts_table(facts)}</div></div>'
        for heading, facts in (("Training", run.environment), ("Speed", measured))
        if facts
    ]
    return f'<h2>Environment</h2><div class="two">{"".join(boxes)}</div>' if boxes else ""


def _number(value: float | None) -> str:
    """A number of a certificate, which has none where it was not finite."""
    return "not finite" if value is None else f"{value:.3g}"
