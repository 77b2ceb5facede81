"""A pretraining recipe, and what its network is worth to a linear probe before and after: one row a seed.

python benchmarks/pretraining.py RECIPE [KEY=VALUE ...] --out DIR --seeds 0 1 2
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from castling.bench.linear_probe import linear_probe_accuracy
from castling.bench.neighbours import knn_accuracy
from castling.bench.results_file import append_row, open_results
from castling.conversion import castle
from castling.tasks.batches import seed_everything
from castling.tasks.classification.data import DataConfig
from castling.tasks.classification.task import Classification, ClassificationConfig
from castling.tasks.task import Batch, Task
from castling.training import load_recipe, train
from castling.training.saved import open_model

FEW = 10  # labelled examples of each class, where there are few


def labelled(task: Task) -> Classification:
    """The same pictures with their labels."""
    data = DataConfig(**{field.name: getattr(task.config.data, field.name) for field in fields(DataConfig)})
    return Classification(ClassificationConfig(task.config.model, data))


@torch.no_grad()
def features(network: nn.Module, batches: Iterable[Batch]) -> tuple[Tensor, Tensor]:
    """The mean of all tokens of each picture, and its class."""
    found = [(network(batch["image"])["features"].mean(1), batch["target"]) for batch in batches]
    vectors, labels = zip(*found, strict=True)
    return torch.cat(vectors), torch.cat(labels)


def probe(network: nn.Module, pictures: Classification) -> dict[str, float]:
    """Accuracy on held-out pictures of logistic regression, with all labels and with few, and of nearest neighbours."""
    network = castle(network).eval()
    known, asked = (features(network, pictures.loader(split, 256)) for split in ("train", "val"))
    few = first_of_each(known[1])
    return {
        "linear": linear_probe_accuracy(*known, *asked),
        "linear_few": linear_probe_accuracy(known[0][few], known[1][few], *asked),
        "neighbours": knn_accuracy(*known, *asked),
    }


def first_of_each(labels: Tensor) -> Tensor:
    """The places of the first ten examples of each class."""
    return torch.cat([(labels == label).nonzero()[:FEW, 0] for label in labels.unique()])


def measure(recipe: str, overrides: list[str], seed: int, folder: Path) -> dict[str, Any]:
    """Train a recipe, or go on with it; its error, and the probes of its network untrained and pretrained."""
    made = load_recipe(recipe, [*overrides, f"seed={seed}"])
    summary = train(made, folder, resume=(folder / "config.yaml").is_file())
    task = made.make_task()
    seed_everything(seed)  # as training began
    pictures = labelled(task)
    before = probe(task.build_network(training=True), pictures)
    after = probe(open_model(folder).network, pictures)
    return {
        "recipe": recipe,
        "seed": seed,
        **{name: summary[name] for name in ("epochs", "steps", "seconds")},
        "error": summary["model"]["error"],
        "error_castled": None if summary["castled"] is None else summary["castled"]["error"],
        **{f"{name}_untrained": value for name, value in before.items()},
        **{f"{name}_pretrained": value for name, value in after.items()},
    }


def main() -> None:
    """Measure all seeds, and print their means with the spread."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", help="such as pretraining/digits")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, required=True, help="folder for runs and results")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    flags = parser.parse_args()
    path = open_results(flags.out, "pretraining", resume=True)
    rows = []
    for seed in flags.seeds:
        rows.append(measure(flags.recipe, flags.overrides, seed, flags.out / f"seed{seed}"))
        append_row(path, rows[-1])
        print(rows[-1], flush=True)
    for name in ("linear", "linear_few", "neighbours"):
        for state in ("untrained", "pretrained"):
            values = [100 * row[f"{name}_{state}"] for row in rows]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            print(f"{name}, {state}: {statistics.mean(values):.2f} +- {spread:.2f} %")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
