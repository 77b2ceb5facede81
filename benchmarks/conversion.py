"""A softmax ViT, converted and castled for a quarter of its budget, beside the castled one from scratch: three seeds.

python benchmarks/conversion.py RECIPE [KEY=VALUE ...] --out DIR --seeds 0 1 2 --short training.batch_size=64
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from castling.bench.results_file import append_row, open_results
from castling.training import load_recipe, train
from castling.training.recipe import Recipe
from castling.workflows.convert_network import convert_network
from castling.workflows.linearize import Linearization
from castling.workflows.originals import find_original


def measure(
    recipe: str, overrides: list[str], short: list[str], seed: int, folder: Path
) -> dict[str, float | int | str]:
    """Top-1 of the original, of the castled conversion, and of the castled network from scratch."""
    seeded = [*overrides, f"seed={seed}"]
    host = load_recipe(recipe, seeded)
    train(host, folder / "host", resume=(folder / "host" / "config.yaml").is_file())
    budget = max(host.training.epochs // 4, 1)

    original = find_original(str(folder / "host"))
    settings = Linearization(("finetune",), (budget,))
    _, certificate, _ = convert_network(original, folder / "converted", settings, train, short, tolerance=100.0)
    assert certificate is not None

    scratch = load_recipe(recipe, [*seeded, *from_scratch(host, budget), *short])
    alone = train(scratch, folder / "scratch", resume=(folder / "scratch" / "config.yaml").is_file())
    return {
        "recipe": recipe,
        "seed": seed,
        "original_epochs": host.training.epochs,
        "conversion_epochs": budget,
        **{name: report.metrics[0].value for name, report in certificate.networks.items()},
        "scratch": alone["model"]["top1"],
    }


def from_scratch(host: Recipe, epochs: int) -> list[str]:
    """The same network with castling attention and new weights, at the original's learning rate."""
    warmup = min(host.training.learning_rate.warmup_epochs, epochs / 10)
    return [
        "model.convert={calibrate: 0}",
        "training.blend={kind: fixed, start: 1.0}",
        f"training.epochs={epochs}",
        f"training.learning_rate.warmup_epochs={warmup}",
    ]


def main() -> None:
    """Measure all seeds, and print their means with the spread."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", help="of the softmax network, such as fashion_mnist/vit")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--short", nargs="*", default=[], metavar="KEY=VALUE", help="for the quarter alone, both kinds")
    parser.add_argument("--out", type=Path, required=True, help="folder for runs and results")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    flags = parser.parse_args()
    path = open_results(flags.out, "conversion", resume=True)
    rows = []
    for seed in flags.seeds:
        rows.append(measure(flags.recipe, flags.overrides, flags.short, seed, flags.out / f"seed{seed}"))
        append_row(path, rows[-1])
        print(rows[-1], flush=True)
    for name in ("original", "converted", "castled", "scratch"):
        values = [100 * float(row[name]) for row in rows]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        print(f"{name}: {statistics.mean(values):.2f} +- {spread:.2f} %")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
