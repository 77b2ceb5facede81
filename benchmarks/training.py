"""Recipes trained to their end and castled, one row a network: its metrics, its verdict, steps and seconds.

What they reached on the way is in a second file, one row for every evaluation of a network.

python benchmarks/training.py NAME RECIPE ... [--set data.root=DIR] [--seeds 0 1] --out DIR
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from castling.bench.results_file import append_row, open_results
from castling.measure.heap import keep_heap
from castling.measure.metric import as_values
from castling.training import load_recipe, train
from castling.training.run_folder import RunFolder
from castling.workflows.castle_run import castle_run


def measure(recipe: str, overrides: list[str], seed: int, folder: Path) -> list[dict[str, Any]]:
    """Train a recipe, or go on with it, and castle it where it has branches: a row for each of its networks."""
    made = load_recipe(recipe, [*overrides, f"seed={seed}"])
    summary = train(made, folder, resume=(folder / "config.yaml").is_file())
    begin = {"recipe": recipe, "seed": seed}
    cost = {name: summary[name] for name in ("epochs", "steps", "seconds")}
    if summary["castled"] is None:
        return [{**begin, "network": "as trained", **cost, "verdict": None, **summary["model"]}]
    certificate, _ = castle_run(folder, tolerance=100.0)
    return [
        {**begin, "network": name, **cost, "verdict": certificate.verdict, **as_values(report.metrics)}
        for name, report in certificate.networks.items()
    ]


def curves(recipe: str, seed: int, folder: Path) -> list[dict[str, Any]]:
    """The metrics of every evaluation in training, without those of single classes."""
    rows = []
    for record in RunFolder(folder).evals():
        for network, metrics in (("as trained", record.model), ("castled", record.castled)):
            if metrics is not None:
                place = {"recipe": recipe, "seed": seed, "network": network, "epoch": record.epoch}
                rows.append(place | as_values([metric for metric in metrics if not metric.detail]))
    return rows


def main() -> None:
    """Measure every recipe with every seed; rows are on disk as soon as they are known."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="of the CSV file")
    parser.add_argument("recipes", nargs="+", metavar="RECIPE")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="for all recipes")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for runs and results")
    flags = parser.parse_args()
    keep_heap()
    path = open_results(flags.out, flags.name, resume=True)
    curves_path = open_results(flags.out, f"{flags.name}_curves", resume=True)
    for seed in flags.seeds:
        for recipe in flags.recipes:
            folder = flags.out / f"{Path(recipe).name}-{seed}"
            for row in measure(recipe, flags.set, seed, folder):
                append_row(path, row)
                print(row, flush=True)
            for row in curves(recipe, seed, folder):
                append_row(curves_path, row)
    print(f"wrote {path} and {curves_path}")


if __name__ == "__main__":
    main()
