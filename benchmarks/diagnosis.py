"""What the attentions of trained runs do, layer by layer, and how much gradient reaches their q, k and v.

python benchmarks/diagnosis.py RUN ... --out DIR
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn

from castling.bench.results_file import append_row, open_results
from castling.conversion import castle, is_castled
from castling.measure.attention_facts import network_facts
from castling.tasks.task import Batch, Task
from castling.training.saved import open_model

BATCH = 64


def gradients(task: Task, network: nn.Module, batch: Batch, layers: list[str]) -> dict[str, dict[str, float]]:
    """Gradient over weight, by length, of the rows that make q, k and v."""
    network.zero_grad()
    task.losses(network, batch).total.backward()
    found = {}
    for layer in layers:
        weight = network.get_submodule(layer).qkv.weight
        pairs = zip(weight.detach().chunk(3), weight.grad.chunk(3), strict=True)
        found[layer] = dict(zip(("gradient_q", "gradient_k", "gradient_v"), map(_share, pairs), strict=True))
    return found


def _share(pair: tuple[Tensor, Tensor]) -> float:
    weight, gradient = pair
    return float(gradient.norm() / weight.norm())


def main() -> None:
    """Measure each run on the first validation batch; a row for each layer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--out", type=Path, required=True, help="folder for the CSV file")
    flags = parser.parse_args()
    path = open_results(flags.out, "diagnosis", resume=True)
    torch.manual_seed(0)
    for run in flags.runs:
        saved = open_model(run)
        network = saved.network if is_castled(saved.network) else castle(saved.network)
        batch = next(iter(saved.task.loader("val", BATCH)))
        facts = network_facts(network, batch["image"])
        reach = gradients(saved.task, network, batch, list(facts))
        for layer, found in facts.items():
            print(append_row(path, {"run": run.name, "layer": layer, **asdict(found), **reach[layer]}), flush=True)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
