"""The table of readers: good files of each, how they are spoiled, and how they are read."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import good_files
import onnx
import torch
from mutation import (
    mutate_bytes,
    mutate_gzip,
    mutate_json,
    mutate_lines,
    mutate_png,
    mutate_safetensors,
    mutate_text,
    mutate_yaml,
    mutate_zip,
)
from timm.utils import ModelEmaV3

from castling.exporting import read_metadata
from castling.report.run_data import occupancy_trajectories, read_run
from castling.tasks.array_files import read_cifar, read_idx
from castling.tasks.classification.distillation import LogitsTeacher
from castling.tasks.detection.data import DetectionData
from castling.tasks.detection.data import open_split as open_boxes
from castling.tasks.huggingface import read_huggingface, read_preprocessing
from castling.tasks.networks import load_start
from castling.tasks.pictures import in_channels, read_picture
from castling.tasks.segmentation.classes import read_list
from castling.tasks.segmentation.data import SegmentationData, read_classes
from castling.tasks.segmentation.data import find_pairs as find_mask_pairs
from castling.tasks.segmentation.layouts import read_ade_list
from castling.tasks.segmentation.masks import read_labels
from castling.training import RunFolder, load_recipe, parse_recipe
from castling.training.checkpoint import load_best
from castling.training.saved import open_model
from castling.training.state import Progress, RunState

PYTORCH = mutate_zip({"data.pkl": mutate_bytes, "/0": mutate_bytes, "version": mutate_bytes})


def _mutate_onnx(rng, content, others=()):
    """The metadata of an ONNX file, or its bytes."""
    if rng.random() < 0.4:
        return mutate_bytes(rng, content, others)
    model = onnx.load_from_string(content)
    model.metadata_props[0].value = mutate_json(rng, model.metadata_props[0].value.encode()).decode("utf-8", "replace")
    return model.SerializeToString()


def _mutate_openvino(rng, content, others=()):
    """The metadata of an OpenVINO file, or its text."""
    if rng.random() < 0.4:
        return mutate_text(rng, content, others)
    tree = ElementTree.fromstring(content)
    entry = tree.find("rt_info/castling")
    text = mutate_json(rng, entry.attrib["value"].encode()).decode("utf-8", "replace")
    entry.set("value", "".join(sign for sign in text if sign.isprintable()))
    return ElementTree.tostring(tree)


BY_ENDING = {
    ".yaml": mutate_yaml,
    ".json": mutate_json,
    ".jsonl": mutate_lines,
    ".safetensors": mutate_safetensors,
    ".txt": mutate_text,
    ".xml": mutate_text,
    ".png": mutate_png,
    ".gz": mutate_gzip,
    ".pt2": mutate_zip({"castling": mutate_json}),
    ".onnx": _mutate_onnx,
    ".pth": PYTORCH,
    ".pt": PYTORCH,
}
Files = dict[str, bytes]


@dataclass(frozen=True)
class Reader:
    """What reads files of one kind.

    Args:
        name: what it is called in tests.
        make: the good files, by name; made in a folder that is given.
        read: reads the folder in which one file, whose path is given too, was spoiled.
        seal: what a sender who knows the format does to another file then, such as new checksums; gives its name.
        names_file: whether the message has to name the file or its folder; of pictures, whoever reads them does.
        spoiled: the files that are spoiled; all where none is named.
    """

    name: str
    make: Callable[[Path], Files]
    read: Callable[[Path, Path], Any]
    seal: Callable[[Path, str], str | None] | None = None
    names_file: bool = True
    spoiled: tuple[str, ...] = ()


def mutator_of(name):
    """How a file is spoiled, by its ending."""
    if name == "model.xml":
        return _mutate_openvino
    return BY_ENDING.get(Path(name).suffix, mutate_bytes)


def _read_run(folder, file):
    run = read_run(folder)
    occupancy_trajectories(run)
    run.score("model"), run.score("castled"), run.original_score(), run.is_baseline, run.image_size
    RunFolder(folder).summary()
    return RunFolder(folder).task()


def _restore(folder, file):
    network = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(network.parameters())
    ema, scaler = ModelEmaV3(network, 0.9), torch.amp.GradScaler("cpu")
    state = RunState(network, optimizer, ema, scaler, Progress(), [3, 2])
    state.restore(RunFolder(folder, writes=False))
    load_best(folder / "checkpoints")
    network(torch.ones(1, 2)).sum().backward()
    optimizer.step()


def _reseal(folder, file):
    """New checksums for what was spoiled; gives the name of the manifest that has them."""
    manifest = Path(file).with_name("manifest.json")
    if manifest.as_posix() == file or not (folder / manifest).is_file():
        return None
    checksums = json.loads((folder / manifest).read_bytes())
    checksums[Path(file).name] = hashlib.sha256((folder / file).read_bytes()).hexdigest()
    good_files.write(folder, {manifest: json.dumps(checksums).encode()})
    return manifest.as_posix()


def _read_picture(folder, file):
    return in_channels(read_picture(file), 3)


def _read_boxes(form, folder, file):
    split = open_boxes(DetectionData(str(folder), format=form), "train")
    return [split.objects(index) for index in range(len(split))], split.read(0)


def _read_masks(folder, file):
    data = SegmentationData(str(folder), format="folders")
    table, pairs = read_classes(data), find_mask_pairs(data, "train")
    return read_labels(pairs.masks[0], table, (8, 8))


def _read_metadata(folder, file):
    said = read_metadata(file)
    return parse_recipe(said.run["recipe"]) if said.run else said


def _read_weights(folder, file):
    network = torch.nn.Linear(2, 2)
    load_start(network, file)
    return network(torch.ones(1, 2))


def _read_huggingface(folder, file):
    return read_huggingface(str(folder)), read_preprocessing(str(folder))


READERS = [
    Reader("recipe", lambda folder: good_files.recipes(), lambda folder, file: load_recipe(file), names_file=False),
    Reader("run", good_files.run_folder, _read_run),
    Reader("checkpoint", good_files.checkpoint, _restore, _reseal),
    Reader("opened_run", good_files.opened_run, lambda folder, file: open_model(folder), _reseal),
    Reader("castled", good_files.castled, lambda folder, file: open_model(folder), _reseal),
    Reader("idx", lambda folder: good_files.idx(), lambda folder, file: read_idx(folder, "train")),
    Reader("idx_packed", lambda folder: good_files.idx(packed=True), lambda folder, file: read_idx(folder, "val")),
    *(
        Reader(f"cifar_{name}", make, lambda folder, file: read_cifar(folder, "val"))
        for name, make in {
            "pickle": lambda folder: good_files.cifar_pickles(2),
            "pickle4": lambda folder: good_files.cifar_pickles(4),
            "sheets": lambda folder: good_files.cifar_sheets(),
        }.items()
    ),
    Reader("picture", lambda folder: good_files.pictures(), _read_picture, names_file=False),
    Reader("logits", good_files.logits, lambda folder, file: LogitsTeacher(folder, ["train/a.png"], 3)),
    Reader("coco", lambda folder: good_files.coco(), partial(_read_boxes, "coco")),
    Reader("voc", lambda folder: good_files.voc(), partial(_read_boxes, "voc")),
    Reader("yolo", lambda folder: good_files.yolo(), partial(_read_boxes, "yolo")),
    Reader("masks", lambda folder: good_files.masks(), _read_masks),
    Reader(
        "class_list",
        lambda folder: good_files.class_lists(),
        lambda folder, file: (read_ade_list if file.name.startswith("object") else read_list)(file),
    ),
    Reader("weights", lambda folder: good_files.weights(), _read_weights),
    *(
        Reader(f"metadata_{name}", make, _read_metadata, names_file=False, spoiled=(f"model.{ending}",))
        for name, (ending, make) in good_files.EXPORTED.items()
    ),
    Reader("huggingface", lambda folder: good_files.huggingface(), _read_huggingface),
]
