"""What a check of data found, as one HTML page: counts by split and class, findings, and drawn samples."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from html import escape
from pathlib import Path

from PIL import Image

from castling.report.page_template import PAGE, card, table
from castling.tasks.data_check import DataReport, Sample


def write_data_page(report: DataReport, path: Path) -> Path:
    """Write the page, making its folder where needed; returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render_data_page(report), encoding="utf-8")
    return path


def render_data_page(report: DataReport) -> str:
    """The page as text; every string that comes from the data is escaped."""
    colour, headline = ("free", "Clean") if not report.num_errors else ("not-yet", f"Errors: {report.num_errors:,}")
    sentence = f"Warnings: {report.num_warnings:,}" if report.num_warnings else "No warnings."
    title = report.root.resolve().name
    cards = "".join(card(*words) for words in _cards(report))
    sections = [
        f'<section class="verdict {colour}"><strong>{headline}</strong><p>{sentence}</p></section>',
        f'<section class="cards">{cards}</section>',
        _findings(report),
        f"<h2>{escape(report.unit.capitalize())} per class</h2>{table(*_per_class(report))}",
        f"<h2>Splits</h2>{table(*_splits(report))}",
        _samples(report.samples),
    ]
    return PAGE.substitute(
        title=escape(title),
        headline=escape(title),
        subtitle=escape(f"{report.form} · {report.root}"),
        body="\n".join(filter(None, sections)),
        verb="data check",
        sources=escape(str(report.root)),
    )


def split_rows(report: DataReport) -> Iterator[tuple[str, ...]]:
    """A row for each thing that is counted, with a number for each split."""
    yield ("pictures", *(f"{split.num_pictures:,}" for split in report.splits))
    for name in report.splits[0].facts:
        yield (name, *(f"{split.facts[name]:,}" for split in report.splits))
    for name in ("smallest", "median", "largest"):
        sizes = [split.picture_sizes.get(name) for split in report.splits]
        yield (f"{name} picture", *("-" if size is None else f"{size[0]} x {size[1]}" for size in sizes))


def class_rows(report: DataReport) -> Iterator[tuple[str, ...]]:
    """A row for each class, with a number for each split."""
    for label in dict.fromkeys(label for split in report.splits for label in split.per_class):
        counts = [split.per_class.get(label, 0) for split in report.splits]
        if report.as_shares:
            totals = [max(1, sum(split.per_class.values())) for split in report.splits]
            yield (label, *(f"{100 * count / total:.3g} %" for count, total in zip(counts, totals, strict=True)))
        else:
            yield (label, *(f"{count:,}" for count in counts))


def _cards(report: DataReport) -> Iterator[tuple[str, str, str]]:
    for split in report.splits:
        yield (f"Pictures, {split.name}", f"{split.num_pictures:,}", "")
        if report.unit in split.facts:
            yield (f"{report.unit.capitalize()}, {split.name}", f"{split.facts[report.unit]:,}", "")
    yield ("Classes", str(len(list(class_rows(report)))), "")


def _findings(report: DataReport) -> str:
    if not report.findings:
        return ""
    columns = ("level", "split", "number", "what", "first")
    rows = [
        (found.level, found.split, f"{found.total:,}", found.kind, "\n".join(found.first)) for found in report.findings
    ]
    return f'<h2>Findings</h2><div class="lines">{table(columns, rows, num_text=len(columns))}</div>'


def _per_class(report: DataReport) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    return ("class", *(split.name for split in report.splits)), list(class_rows(report))


def _splits(report: DataReport) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    return ("", *(split.name for split in report.splits)), list(split_rows(report))


def _samples(samples: list[Sample]) -> str:
    if not samples:
        return ""
    figures = [
        f'<figure><img alt="{escape(sample.title)}" src="data:image/jpeg;base64,{_jpeg(sample.picture)}">'
        f"<figcaption>{escape(sample.title)}{f'<br>{escape(sample.note)}' if sample.note else ''}</figcaption></figure>"
        for sample in samples
    ]
    return f'<h2>Samples</h2><section class="figures samples">{"".join(figures)}</section>'


def _jpeg(picture: Image.Image) -> str:
    stream = io.BytesIO()
    picture.save(stream, "JPEG", quality=88)
    return base64.b64encode(stream.getvalue()).decode()
