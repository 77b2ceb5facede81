"""A run of a study as rows: what each of its networks reached, and what it reached on the way.

All of it is read from the run folder, so that rows can be written again wherever a run is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from castling.bench.results_file import append_row, read_rows
from castling.conversion import Certificate, castle, has_castling_attention, is_castled
from castling.measure.environment import describe_environment
from castling.measure.macs import count_macs, count_parameters
from castling.measure.metric import Metric, as_values
from castling.measure.occupancy import Occupancy
from castling.measure.plain_json import read_object
from castling.measure.shapes import shapes_only
from castling.training.manifest import MANIFEST
from castling.training.run_folder import RunFolder
from castling.training.saved import CASTLED, CERTIFICATE

TEST = "test.json"  # what a run reached on the data's own held-out pictures, and where that was found
UP, DOWN = "up", "down"
AS_TRAINED, VALIDATION = "as trained", "validation"
KEY = ("variant", "seed", "split", "network", "seconds")  # rows of the same run: a new training takes another time
CURVE_KEY = ("variant", "seed", "network", "step")


def is_done(folder: Path) -> bool:
    """Whether a run was trained to its end and castled, where it has something to castle."""
    run = RunFolder(folder)
    if not run.is_finished():
        return False
    if run.summary().get("castled") is None:
        return True
    path = folder / CERTIFICATE
    if not path.is_file():
        return False
    return not Certificate.from_json(read_object(path)).allowed or (folder / CASTLED / MANIFEST).is_file()


def result_rows(variant: str, seed: int, folder: Path) -> list[dict[str, Any]]:
    """A row for each network of a run on the validation pictures, and on the test pictures where it saw them.

    Args:
        variant: the variant of the study.
        seed: the seed of the run.
        folder: the folder of the run, which is done.
    """
    run = RunFolder(folder)
    summary = run.summary()
    begin = {"variant": variant, "seed": seed}
    cost = {name: summary[name] for name in ("epochs", "steps", "seconds")}
    described = metrics_cell([Metric(**about, value=0.0) for about in summary["metrics"]])
    environment = {**describe_environment(), **_known(read_object(folder / "environment.json"))}
    if summary["castled"] is None:
        found = [({"network": AS_TRAINED, **cost, "verdict": None, "lost": None}, summary["model"], _size(run))]
    else:
        certificate = Certificate.from_json(read_object(folder / CERTIFICATE))
        about = {**cost, "verdict": certificate.verdict, "lost": certificate.lost}
        found = [
            ({"network": name, **about}, as_values(report.metrics), (report.macs, report.parameters))
            for name, report in certificate.networks.items()
        ]
    rows = [
        {**begin, "split": VALIDATION, **about, "macs": size[0], "parameters": size[1], "metrics": described}
        | {**metrics, **environment}
        for about, metrics, size in found
    ]
    if (folder / TEST).is_file():
        seen = read_object(folder / TEST)
        metrics_of, where = seen["networks"], _known(seen["environment"])
        rows += [
            row | {"split": "test"} | metrics_of[row["network"]] | where for row in rows if row["network"] in metrics_of
        ]
    return rows


def metrics_cell(metrics: Iterable[Metric]) -> str:
    """Names, units and directions of metrics in a cell, so that rows can be read without their runs.

    Example:
        >>> metrics_cell([Metric("top1", 0.5), Metric("error", 2.0, "", higher_is_better=False)])
        'top1=% up; error= down'
    """
    return "; ".join(
        f"{one.name}={one.unit} {UP if one.higher_is_better else DOWN}" for one in metrics if not one.detail
    )


def metrics_of_cell(cell: str) -> dict[str, Metric]:
    """The metrics that `metrics_cell` described, by name and without a value.

    Example:
        >>> metrics_of_cell("top1=% up; error= down")["error"].higher_is_better
        False
    """
    found = {}
    for words in cell.split("; "):
        name, _, about = words.partition("=")
        unit, _, direction = about.rpartition(" ")
        found[name] = Metric(name, 0.0, unit, higher_is_better=direction == UP)
    return found


def curve_rows(variant: str, seed: int, folder: Path) -> list[dict[str, Any]]:
    """A row for each network at each evaluation in training: its metrics, and how full the masks were.

    Args:
        variant: the variant of the study.
        seed: the seed of the run.
        folder: the folder of the run.
    """
    rows = []
    for record in RunFolder(folder).evals():
        masks = fullest(record.occupancy)
        place = {"variant": variant, "seed": seed, "step": record.step, "epoch": record.epoch}
        full = {
            "fullest_mask": max(masks.values(), default=None),
            "masks": " ".join(f"{layer}={share:.3g}" for layer, share in masks.items()),
        }
        for network, metrics in ((AS_TRAINED, record.model), (CASTLED, record.castled)):
            if metrics is not None:
                values = as_values([metric for metric in metrics if not metric.detail])
                rows.append({**place, "network": network, **values, **full})
    return rows


def fullest(occupancy: Occupancy) -> dict[str, float]:
    """The share of entries that survive the mask in the fullest head of every layer.

    Example:
        >>> fullest({"blocks.0.attn": [0.0, 0.25]})
        {'blocks.0.attn': 0.25}
    """
    return {layer: max(heads) for layer, heads in occupancy.items() if heads}


def is_recorded(path: Path, variant: str, seed: int, folder: Path) -> bool:
    """Whether a file has the rows of a run that is done: to make them again takes a moment for each."""
    begin = (variant, str(seed), _as_cell(RunFolder(folder).summary()["seconds"]))
    splits = {row["split"] for row in read_rows(path) if (row["variant"], row["seed"], row["seconds"]) == begin}
    return VALIDATION in splits and ("test" in splits or not (folder / TEST).is_file())


def append_new(path: Path, rows: Iterable[Mapping[str, Any]], key: tuple[str, ...]) -> int:
    """Append those rows of which the file has none with the same cells in the columns of the key; returns how many."""
    known = {tuple(row[column] for column in key) for row in read_rows(path)}
    new = [row for row in rows if tuple(_as_cell(row[column]) for column in key) not in known]
    for row in new:
        append_row(path, row)
    return len(new)


def _as_cell(value: Any) -> str:
    """A cell as the file has it."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _known(environment: Mapping[str, Any]) -> dict[str, str]:
    """What every row has of an environment."""
    return {name: str(environment[name]) for name in describe_environment() if name in environment}


def _size(run: RunFolder) -> tuple[int, int]:
    """MACs and parameters of a run's network in the form for inference."""
    task = run.task()
    with shapes_only():
        network, example = task.build_network(), task.deployment().example
        if has_castling_attention(network) and not is_castled(network):
            network = castle(network, inplace=True)
    return count_macs(network, example).total, count_parameters(network)
