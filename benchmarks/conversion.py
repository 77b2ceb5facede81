"""A softmax ViT, converted and castled for a strict quarter of its steps, beside the castled one from scratch.

python benchmarks/conversion.py RECIPE [KEY=VALUE ...] --out DIR --seeds 0 1 2 --sizes 192 384 --attention rotary=true

The quarter has a quarter of the original's pictures and steps, in batches of the same size. A tenth of the training
pictures is held out, so that choices can be made on them; what is written was seen on the test pictures, at the size of
training and at others.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

from castling import AttentionConfig
from castling.bench.results_file import append_row, open_results
from castling.models.input_size import at_size
from castling.settings import from_mapping, with_overrides
from castling.training import load_recipe, train
from castling.training.evaluation import OnDevice, best_device, evaluate
from castling.training.recipe import Recipe
from castling.training.run_folder import RunFolder
from castling.training.saved import open_model
from castling.workflows.castle_run import networks_of
from castling.workflows.convert_network import convert_network
from castling.workflows.linearize import Linearization
from castling.workflows.originals import find_original

NAMES = ("original", "converted", "castled", "scratch")
HELD_OUT = "data.held_out=0.1"
CONVERTED = Linearization().attention


def measure(
    recipe: str,
    overrides: list[str],
    attention: AttentionConfig,
    train_sizes: list[int],
    sizes: list[int],
    seed: int,
    folder: Path,
) -> list[dict[str, Any]]:
    """A row for each size: top-1 of the original, of the conversion, castled or not, and of the same from scratch."""
    seeded = [HELD_OUT, *overrides, f"seed={seed}"]
    host = load_recipe(recipe, seeded)
    if host.training.epochs % 4:
        raise ValueError(f"a quarter of {host.training.epochs} epochs is no whole number: set training.epochs")
    budget = host.training.epochs // 4
    train(host, folder / "host", resume=(folder / "host" / "config.yaml").is_file())

    original = find_original(str(folder / "host"))
    settings = Linearization(("finetune",), (budget,), attention=attention, train_sizes=tuple(train_sizes))
    converted, _, _ = convert_network(original, folder / "converted", settings, train, tolerance=100.0)
    quarter = open_model(converted)
    scratch = load_recipe(recipe, [*seeded, *from_scratch(host, budget, attention)])
    train(scratch, folder / "scratch", resume=(folder / "scratch" / "config.yaml").is_file())

    task = quarter.task.on_test()
    networks = {**networks_of(quarter, task), "scratch": open_model(folder / "scratch").network}
    rows = []
    for size in (host.settings.data.image_size, *sizes):
        judged = task.elsewhere(image_size=size)
        batches = OnDevice(judged.loader("val", 64), best_device())
        found = {name: evaluate(judged, at_size(network, size), batches).model for name, network in networks.items()}
        rows.append(
            {
                "recipe": recipe,
                "seed": seed,
                "attention": json.dumps(changes(attention)),
                "train_sizes": " ".join(map(str, train_sizes)),
                "size": size,
                **cost("original", folder / "host"),
                **cost("conversion", converted),
                **cost("scratch", folder / "scratch"),
                **{name: metrics[0].value for name, metrics in found.items()},
            }
        )
    return rows


def from_scratch(host: Recipe, epochs: int, attention: AttentionConfig) -> list[str]:
    """The same network with castling attention and new weights, at the original's learning rate."""
    warmup = min(host.training.learning_rate.warmup_epochs, epochs / 10)
    return [
        f"model.convert={json.dumps({'calibrate': 0, 'attention': asdict(attention)})}",
        "training.blend={kind: fixed, start: 1.0}",
        f"training.epochs={epochs}",
        f"training.learning_rate.warmup_epochs={warmup}",
    ]


def changes(attention: AttentionConfig) -> dict[str, Any]:
    """What differs from the default of a conversion."""
    default = asdict(CONVERTED)
    return {name: value for name, value in asdict(attention).items() if value != default[name]}


def cost(name: str, run: Path) -> dict[str, int | float]:
    """Steps and seconds of a run."""
    summary = RunFolder(run).summary()
    return {f"{name}_steps": summary["steps"], f"{name}_seconds": summary["seconds"]}


def main() -> None:
    """Measure all seeds, and print their means with the spread."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", help="of the softmax network, such as fashion_mnist/vit")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, required=True, help="folder for runs and results")
    parser.add_argument("--attention", nargs="*", default=[], metavar="KEY=VALUE", help="options of castling attention")
    parser.add_argument("--train-size", type=int, nargs="*", default=[], metavar="PX", help="of the conversion")
    parser.add_argument("--sizes", type=int, nargs="*", default=[], metavar="PX", help="other sizes to measure at")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    flags = parser.parse_args()
    attention = from_mapping(AttentionConfig, with_overrides(asdict(CONVERTED), flags.attention), "attention")
    path = open_results(flags.out, "conversion", resume=True)
    rows = []
    for seed in flags.seeds:
        folder = flags.out / f"seed{seed}"
        for row in measure(flags.recipe, flags.overrides, attention, flags.train_size, flags.sizes, seed, folder):
            append_row(path, row)
            rows.append(row)
            print(row, flush=True)
    for size in dict.fromkeys(row["size"] for row in rows):
        for name in NAMES:
            values = [100 * row[name] for row in rows if row["size"] == size]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            print(f"{size} px, {name}: {statistics.mean(values):.2f} +- {spread:.2f} %")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
