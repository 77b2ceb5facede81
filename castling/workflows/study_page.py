"""From the files of a study to its page: rows, logs of its runs, and what its file says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from castling.bench.results_file import read_rows
from castling.bench.study import Study
from castling.bench.study_rows import fullest
from castling.config import check_choice
from castling.measure.metric import Metric
from castling.report.study_data import Points, StudyData, VariantData, fill
from castling.report.study_page import write_study
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
    found, on_the_way = read_rows(rows), read_rows(curves)
    runs = {name: sorted({int(row["seed"]) for row in found if row["variant"] == name}) for name in study.variants}
    metric = _metric(
        study.metric, [RunFolder(out / f"{name}-{seed}") for name, seeds in runs.items() for seed in seeds]
    )
    variants = [
        fill(
            VariantData(
                name,
                variant.note,
                study.opponents(name),
                study.paper_figure(name),
                masks={seed: masks for seed in runs[name] if (masks := _masks(out / f"{name}-{seed}"))},
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
        missing={**missing, **failed},
        facts={key: _several([row[key] for row in found]) for key in KNOWN} | _unkept(found),
    )


def _metric(name: str | None, runs: Sequence[RunFolder]) -> Metric:
    """The metric of this name, or the deciding one, as the first run that is still there describes it."""
    for run in runs:
        if run.is_finished():
            known = {about["name"]: Metric(**about, value=0.0) for about in run.summary()["metrics"]}
            check_choice("metric", name or next(iter(known)), known)
            return known[name or next(iter(known))]
    raise ValueError("no run of this study is done: there is nothing to compare yet")


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
