"""From the files of a study to its page: rows, logs of its runs, and what its file says."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from castling.bench.results_file import read_rows
from castling.bench.study import Study, load_study
from castling.bench.study_rows import fullest, metrics_of_cell
from castling.config import check_choice
from castling.report.marks import marked, write_marked
from castling.report.study_data import Points, Row, StudyData, VariantData, fill
from castling.report.study_page import write_study
from castling.report.study_table import MARK, study_markdown
from castling.training import RunFolder
from castling.workflows.study import StudyResult

KNOWN = ("commit", "processor", "torch", "timm", "threads", "date", "command")  # of where rows were measured
MOST_NAMED = 4


def write_page(study: Study, out: Path, result: StudyResult) -> tuple[Path, StudyData]:
    """Write the page of a study beside its results.

    Args:
        study: the study, all of it: rows of earlier calls count too.
        out: the folder of its runs.
        result: its files, and which runs failed.

    Returns:
        The page, and what is in it.

    Raises:
        ValueError: if no run is done: then there is nothing to show.
        ImportError: if matplotlib is missing; names the extra.
    """
    found = study_data(study, out, result.rows, result.curves, result.failed)
    return write_study(found, out), found


def study_data(study: Study, out: Path, rows: Path, curves: Path, failed: Mapping[str, str]) -> StudyData:
    """What a study has come to, from its files.

    Args:
        study: the study, all of it: rows of earlier calls count too.
        out: the folder of its runs.
        rows: the CSV file of results.
        curves: the CSV file of what was reached on the way.
        failed: the reasons of runs that failed, by name.

    Raises:
        ValueError: if no run is done, or the study's metric is none of theirs.
    """
    return study_data_of(study, read_rows(rows), read_rows(curves), failed, out)


def recorded_study(name: str, results: Path) -> StudyData:
    """What a study has come to by its newest CSV file in a folder, without its runs.

    Args:
        name: the study.
        results: the folder.

    Raises:
        ValueError: if there is no such study, or no file of it.
    """
    study = load_study(name)
    dated = re.compile(re.escape(study.name) + r"-.+-(\d{4}-\d{2}-\d{2})\.csv")
    files = {path: found[1] for path in results.glob("*.csv") if (found := dated.fullmatch(path.name))}
    if not files:
        raise ValueError(f"{results} has no file {study.name}-*.csv: castling study {study.name} --out DIR writes one")
    newest = max(files, key=lambda path: (files[path], path.name))
    curves = newest.with_name(newest.name.replace(study.name, f"{study.name}_curves", 1))
    return study_data_of(study, read_rows(newest), read_rows(curves))


def write_tables(page: Path, results: Path) -> None:
    """Write the tables of recorded studies between the marks of a Markdown file, `<!-- castling study NAME: begin -->`.

    Args:
        page: the file. It stays as it is where one of its studies has no results.
        results: the folder of the CSV files.

    Raises:
        ValueError: if the file has no such marks, or there are no results of one of its studies.
    """
    names = [mark for mark in marked(page) if mark.startswith(MARK)]
    if not names:
        raise ValueError(f"{page} has no marks of a study, such as <!-- castling {MARK}kernels: begin -->")
    tables = {mark: study_markdown(recorded_study(mark.removeprefix(MARK), results)) for mark in names}
    for mark, table in tables.items():
        write_marked(page, mark, table)


def study_data_of(
    study: Study,
    found: Sequence[Row],
    on_the_way: Sequence[Row],
    failed: Mapping[str, str] | None = None,
    out: Path | None = None,
) -> StudyData:
    """What a study has come to, from its rows.

    Args:
        study: the study.
        found: the rows of results.
        on_the_way: the rows of curves.
        failed: the reasons of runs that failed, by name.
        out: the folder of its runs, whose logs have the masks at every step; None for none.

    Raises:
        ValueError: if there are no rows, or the study's metric is none of theirs.
    """
    runs = {name: sorted({int(row["seed"]) for row in found if row["variant"] == name}) for name in study.variants}
    if not found:
        raise ValueError("no run of this study is done: there is nothing to compare yet")
    known = metrics_of_cell(found[0]["metrics"])
    check_choice("metric", study.metric or next(iter(known)), known)
    metric = known[study.metric or next(iter(known))]
    variants = [
        fill(
            VariantData(
                name,
                variant.note,
                study.opponents(name),
                study.paper_figure(name),
                masks={seed: masks for seed in runs[name] if out and (masks := _masks(out / f"{name}-{seed}"))},
            ),
            found,
            on_the_way,
            metric,
        )
        for name, variant in study.variants.items()
    ]
    missing = {f"{name}-{seed}": "not yet" for name in study.variants for seed in study.seeds if seed not in runs[name]}
    return StudyData(
        name=study.name,
        title=study.title,
        question=study.question,
        budget=study.budget,
        metric=metric,
        variants=variants,
        paper_place="" if study.paper is None else f"{study.paper.column} of its table {study.paper.table}",
        missing={**missing, **(failed or {})},
        facts={key: _several([row[key] for row in found]) for key in KNOWN} | _unkept(found),
    )


def _masks(folder: Path) -> dict[str, Points]:
    """How full the fullest head of every layer was at each logged step; nothing where the run folder is gone."""
    found: dict[str, list[tuple[float, float]]] = {}
    for record in RunFolder(folder).steps():
        for layer, share in fullest(record.occupancy).items():
            found.setdefault(layer, []).append((record.step, share))
    return dict(found)


def _unkept(rows: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """How many rows cannot be measured again, as their files are in no commit."""
    count = sum(row["commit"].endswith("-dirty") for row in rows)
    return {"rows of uncommitted files": f"{count} of {len(rows)}"} if count else {}


def _several(values: Sequence[str]) -> str:
    """Different values in a line; the first few of many."""
    different = list(dict.fromkeys(values))
    more = f", and {len(different) - MOST_NAMED} more" if len(different) > MOST_NAMED else ""
    return ", ".join(different[:MOST_NAMED]) + more
