"""How fast pictures are read, what an index of a million costs, and what a checkpoint costs beside a step.

Three files of results, each by a word: `rate` (pictures per second of folder and shards beside timm's loader, crops and
mirroring alone, taking turns epoch by epoch), `index` (start and memory of folder and shards with so many pictures of a
few bytes, each in a process of its own), `checkpoint` (DeiT-Tiny: seconds of saving and of a step). timm's reader of
shards needs the package webdataset; with DeiT's policy timm's own loader ends in an error of Pillow 13.

python benchmarks/reading.py rate --data imagenette --shards imagenette-shards --out benchmarks/results
python benchmarks/reading.py index --pictures 1300000 --work scratch --out benchmarks/results
python benchmarks/reading.py checkpoint --work scratch --out benchmarks/results
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import psutil
import torch
from timm.data import create_dataset, create_loader

from castling.bench.results_file import append_row, open_results, time_cells
from castling.measure.heap import keep_heap
from castling.measure.latency import Timing
from castling.tasks.batches import EpochBatches
from castling.tasks.classification.data import AugmentConfig, DataConfig, Labelled
from castling.tasks.picture_sources import open_source
from castling.tasks.pictures import PictureLoader, Pictures
from castling.tasks.preparation import in_two_steps, train_transform
from castling.training import load_recipe
from castling.training.lock import RunLock
from castling.training.loop import Trainer

BATCH, MOST_LINKS = 64, 60_000


def our_loader(kind: str, root: Path, workers: int, count: int) -> PictureLoader:
    """Batches of training pictures as a run gets them."""
    data, vary = DataConfig(), AugmentConfig(auto_augment=None, color_jitter=0.0, erasing=0.0)
    source = open_source(kind, "train", root)
    transform, finish = in_two_steps(train_transform(data, vary))
    pictures = Pictures(source, Labelled(transform), 3, seed=0)
    return PictureLoader(pictures, EpochBatches(count, BATCH, seed=0), workers, finish=finish)


def timms_loader(root: Path, workers: int, prefetcher: bool, count: int) -> Any:
    """The same of timm's, from pictures in folders; its prefetcher normalises whole batches in the training process."""
    dataset = create_dataset("folder", root=str(root / "train"), is_training=True)
    dataset.reader.samples = dataset.reader.samples[:count]
    return create_loader(
        dataset,
        (3, 224, 224),
        BATCH,
        is_training=True,
        use_prefetcher=prefetcher,
        re_prob=0.0,
        color_jitter=0.0,
        auto_augment=None,
        interpolation="bicubic",
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=False,
        device=torch.device("cpu"),
    )


def measure_rate(flags: argparse.Namespace) -> None:
    """Read the same pictures with every loader in turns; a round is an epoch, after which no reader is at work."""
    if importlib.util.find_spec("webdataset") is None:
        print("webdataset is not installed: without timm's reader of shards")
    path = open_results(flags.out, "reading_rate", resume=True)
    for workers in flags.workers:
        loaders = {
            "folder": our_loader("folder", flags.data, workers, flags.pictures),
            "shards": our_loader("shards", flags.shards, workers, flags.pictures),
            "timm, without prefetcher": timms_loader(flags.data, workers, False, flags.pictures),
            "timm, with prefetcher": timms_loader(flags.data, workers, True, flags.pictures),
        }
        rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in loaders}
        for number in range(flags.rounds + 1):  # the first starts the readers and is not counted
            for name, loader in loaders.items():
                if isinstance(loader, PictureLoader):
                    loader.seek(number)
                spent, begin = processor_seconds(), time.perf_counter()
                count = sum(len(batch["image"] if isinstance(batch, dict) else batch[0]) for batch in loader)
                seconds = time.perf_counter() - begin, processor_seconds() - spent
                rounds[name] += [(seconds[0] / count, seconds[1] / count)] if number else []
        for name, pairs in rounds.items():
            lower, median, upper = statistics.quantiles([pair[0] for pair in pairs], n=4, method="inclusive")
            timing = Timing(median, lower, upper)
            ratios = [other[0] / ours[0] for other, ours in zip(pairs, rounds["shards"], strict=True)]
            row = {"loader": name, "workers": workers, "batch_size": BATCH, "rounds": flags.rounds}
            row |= {"pictures_per_second": 1 / median, **time_cells("picture", timing)}
            row |= {"processor_ms": 1e3 * statistics.median(pair[1] for pair in pairs)}
            row |= {"shards_times_as_fast": statistics.median(ratios), "load": os.getloadavg()[0]}
            append_row(path, row)
            print(row, flush=True)
        del loaders, loader


def processor_seconds() -> float:
    """Of this process and its readers; other programs at the same time cost time, but not these seconds."""
    this = psutil.Process()
    return sum(sum(one.cpu_times()[:2]) for one in [this, *this.children(recursive=True)])


def write_folders(folder: Path, count: int) -> None:
    """So many pictures in class folders: links to a few files, as only names count."""
    content, per_class = b"x" * 300, -(-count // 1000)
    for number in range(count):
        label, place = divmod(number, per_class)
        if place == 0:
            (folder / "train" / f"n{label:08d}").mkdir(parents=True)
        original = folder / f"{number // MOST_LINKS}.bin"
        if number % MOST_LINKS == 0:
            original.write_bytes(content)
        os.link(original, folder / "train" / f"n{label:08d}" / f"n{label:08d}_{place}.JPEG")


def write_shards(shards: Path, count: int) -> None:
    """So many pictures of a few bytes in 130 shards: links to one file, as only headers are read."""
    content, per_shard = b"x" * 300, -(-count // 130)
    shards.mkdir(parents=True)
    with tarfile.open(shards / "train-000000.tar", "w") as tar:
        for number in range(per_shard):
            for ending, some in (("jpg", content), ("cls", str(number % 1000).encode())):
                info = tarfile.TarInfo(f"n{number:08d}_{number}.{ending}")
                info.size = len(some)
                tar.addfile(info, io.BytesIO(some))
    for number in range(1, -(-count // per_shard)):
        os.link(shards / "train-000000.tar", shards / f"train-{number:06d}.tar")


def open_alone(kind: str, root: str) -> None:
    """Open a source in this process, draw an epoch, and write seconds and memory to the standard output."""
    process, found = psutil.Process(), {}
    before, begin = process.memory_full_info(), time.perf_counter()
    source = open_source(kind, "train", root)
    found["open_seconds"] = time.perf_counter() - begin
    after, begin = process.memory_full_info(), time.perf_counter()
    found |= {"open_rss_mib": (after.rss - before.rss) / 2**20, "open_own_mib": (after.uss - before.uss) / 2**20}
    batches = iter(EpochBatches(len(source), 1024, seed=0))
    next(batches)
    found["order_seconds"] = time.perf_counter() - begin
    rows = list(range(0, len(source), 64))
    for row in rows:
        source.name(row), source.target(row)
    later = process.memory_full_info()
    found |= {"used_rss_mib": (later.rss - before.rss) / 2**20, "used_own_mib": (later.uss - before.uss) / 2**20}
    print(json.dumps({"pictures": len(source), **found}))


def measure_index(flags: argparse.Namespace) -> None:
    """Open folder and shards in a process each, shards before and after their index is there."""
    folder, shards = flags.work / "folder", flags.work / "shards"
    for form, place, write in (("folder", folder, write_folders), ("shards", shards, write_shards)):
        if form in flags.forms and not place.is_dir():
            write(place, flags.pictures)
    path = open_results(flags.out, "reading_index", resume=True)
    forms = {"folder": ("folder", folder), "shards, first": ("shards", shards), "shards, kept": ("shards", shards)}
    for number in range(flags.rounds):
        for name, (kind, root) in forms.items():
            if kind not in flags.forms:
                continue
            if name == "shards, first":
                (shards / ".castling-train.safetensors").unlink(missing_ok=True)
            command = [sys.executable, __file__, "open", kind, str(root)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            row = {"form": name, "round": number, **json.loads(done.stdout.splitlines()[-1])}
            append_row(path, row | {"load": os.getloadavg()[0]})
            print(row, flush=True)


def measure_checkpoint(flags: argparse.Namespace) -> None:
    """Seconds of a step and of saving, of DeiT-Tiny at 224 px with a moving average of its weights."""
    settings = ["data.source=digits", f"training.batch_size={flags.batch_size}", "training.accumulate=1"]
    recipe = load_recipe("imagenette/castling_deit_tiny", [*settings, "training.workers=0", "training.ema_decay=0.999"])
    marks: list[float] = []
    folder = flags.work / f"checkpoint-{time.time_ns()}"
    with RunLock(folder) as lock:
        trainer = Trainer(recipe, folder, False, lambda record: marks.append(time.perf_counter()), lock)
        batches = iter(trainer.train_loader)
        saves = []
        for _ in range(flags.rounds + 1):
            trainer._step([next(batches)])
            begin = time.perf_counter()
            trainer.state.save(trainer.folder, 0.0)
            saves.append(time.perf_counter() - begin)
    steps = [later - earlier - save for earlier, later, save in zip(marks, marks[1:], saves, strict=False)]
    step, save, every = statistics.median(steps), statistics.median(saves), recipe.training.checkpoint_every
    size = sum(path.stat().st_size for path in max(folder.glob("checkpoints/step-*")).iterdir())
    row = {"recipe": "imagenette/castling_deit_tiny", "batch_size": flags.batch_size, "rounds": flags.rounds}
    row |= {"step_seconds": step, "save_seconds": save, "checkpoint_mb": size / 1e6, "checkpoint_every": every}
    row |= {"saving_over_a_step": save / step, "share_of_training": save / (every * step), "load": os.getloadavg()[0]}
    append_row(open_results(flags.out, "checkpoint_cost", resume=True), row)
    print(row)


def main() -> None:
    """Measure one of the three."""
    if sys.argv[1:2] == ["open"]:
        return open_alone(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("rate", "index", "checkpoint"))
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--data", type=Path, help="folders of classes")
    parser.add_argument("--shards", type=Path, help="what castling data pack made of them, in their order")
    parser.add_argument("--work", type=Path, help="folder for what is made to be measured")
    parser.add_argument("--pictures", type=int, default=640)
    parser.add_argument("--forms", nargs="+", choices=("folder", "shards"), default=["folder", "shards"])
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batch-size", type=int, default=32)
    flags = parser.parse_args()
    torch.set_num_threads(1)
    keep_heap()
    {"rate": measure_rate, "index": measure_index, "checkpoint": measure_checkpoint}[flags.what](flags)


if __name__ == "__main__":
    main()
