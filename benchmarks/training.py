"""Recipes trained to their end and castled, one row a network: its metrics, its verdict, steps and seconds.

What they reached on the way is in a second file, one row for every evaluation of a network. `castling study` compares
variants of one recipe; this is for recipes that have little in common.

python benchmarks/training.py NAME RECIPE ... [--set data.root=DIR] [--seeds 0 1] --out DIR
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from castling.bench.results_file import append_row, open_results
from castling.bench.study_rows import curve_rows, result_rows
from castling.measure.environment import describe_environment
from castling.measure.heap import keep_heap
from castling.training import load_recipe
from castling.workflows.study_run import train_and_castle

FIRST = ("seed", "network")
STUDYS_OWN = ("variant", "split", "lost", "macs", "parameters", "metrics", "step", "fullest_mask", "masks")


def of_recipe(recipe: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a study as a row of a recipe."""
    left_out = {*FIRST, *STUDYS_OWN, *describe_environment()}
    rest = {name: value for name, value in row.items() if name not in left_out}
    return {"recipe": recipe, **{name: row[name] for name in FIRST}, **rest}


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
            train_and_castle(load_recipe(recipe, [*flags.set, f"seed={seed}"]), folder)
            for row in result_rows(recipe, seed, folder):
                append_row(path, of_recipe(recipe, row))
                print(of_recipe(recipe, row), flush=True)
            for row in curve_rows(recipe, seed, folder):
                append_row(curves_path, of_recipe(recipe, row))
    print(f"wrote {path} and {curves_path}")


if __name__ == "__main__":
    main()
