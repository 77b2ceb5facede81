"""A predictor in several threads for thousands of pictures of changing sizes: equal answers, and memory that is flat.

python benchmarks/soak.py RUN ... --pictures 20000 --threads 4 --out DIR
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from rich.progress import Progress

import castling
from castling.bench.results_file import append_row, open_results
from castling.bench.soak import soak


def main() -> None:
    """One row for each run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run, its castled folder, or an exported file")
    parser.add_argument("--pictures", type=int, default=20_000)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    flags = parser.parse_args()
    torch.set_num_threads(1)  # the threads are ours
    path = open_results(flags.out, "soak", resume=True)
    for run in flags.runs:
        model = castling.open(run)
        with Progress() as progress:
            bar = progress.add_task(run, total=2 * flags.pictures)
            report = soak(
                lambda picture, model=model: model.predict(picture)[0].to_json(),
                flags.pictures,
                flags.threads,
                on_picture=lambda progress=progress, bar=bar: progress.advance(bar),
            )
        row = {
            "run": run,
            "task": model.recipe.task,
            "pictures": report.pictures,
            "asking_threads": report.threads,
            "different": len(report.different),
            "pictures_per_second": round(report.pictures / report.seconds, 1),
            "memory_of_second_quarter_mib": round(report.memory[len(report.memory) // 3], 1),
            "memory_at_end_mib": round(report.memory[-1], 1),
            "growth_mib": round(report.growth, 2),
        }
        print(append_row(path, row))


if __name__ == "__main__":
    main()
