"""What is exported, found by a word: a run, its castled folder, or the name of a model; and a run's file in 8 bits."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

import castling.models  # noqa: F401 - registers castling_*
from castling.attention import branches
from castling.config import check_choice
from castling.conversion import castle
from castling.exporting import QuantizationCard, Verification, describe_deployment, describe_network, quantize
from castling.exporting.metadata import Metadata
from castling.measure.metric import Metric
from castling.measure.plain_json import json_text
from castling.sentences import one_line
from castling.tasks.networks import NetworkConfig, head_width, read_weights
from castling.tasks.task import Batch, Task
from castling.training.recipe import recipe_values
from castling.training.run_folder import write_file
from castling.training.saved import CASTLED, Which, open_model

NUM_CALIBRATION = 300  # pictures from which 8 bits learn their ranges
Track = Callable[[Iterable[Batch], int, str], Iterable[Batch]]
Size = tuple[int, int]


@dataclass(frozen=True)
class Subject:
    """What is exported.

    Args:
        network: the network, in evaluation mode.
        example: an input of the size that it is made for.
        metadata: how to use it.
        out: the path where the file goes by default, without its ending.
        tolerance: the largest difference of outputs that means nothing.
        task: the task of its run, where there is one.
    """

    network: nn.Module
    example: Tensor
    metadata: Metadata
    out: Path
    tolerance: float = 1e-4
    task: Task | None = None


def find_subject(
    name: str,
    size: Size | None = None,
    batch: int = 1,
    weights: Path | None = None,
    checkpoint: Which | None = None,
    with_branch: bool = False,
    finished: bool = False,
) -> Subject:
    """Open the run, or make the model of this name.

    Args:
        name: a run folder, its castled folder, or a model of timm's registry.
        size: height and width that it is made for; its own where None.
        batch: the number of images at a time that it is made for.
        weights: the weights of a named model; random where None.
        checkpoint: which weights of a run that was not castled.
        with_branch: whether a run is taken with its branch, even if it was castled.
        finished: whether what is done to outputs before they are used is part of the network.

    Raises:
        ValueError: if there is neither, a run was not castled, weights do not fit, or nothing is done to outputs.
    """
    if batch < 1:
        raise ValueError(f"batch must be at least 1; got {batch}")
    folder = Path(name)
    if not folder.exists():
        if "/" in name:
            raise ValueError(f"there is no run folder {name}")
        if finished:
            raise ValueError(f"--finished is for a run, whose task knows what is done to outputs; got {name}")
        return _named(name, size, batch, weights, with_branch)
    if weights is not None:
        raise ValueError("--weights is for a named model; a run has its own")
    if (folder / CASTLED).is_dir() and not with_branch:
        folder = folder / CASTLED
    saved = open_model(folder, checkpoint)
    if branches(saved.network) and not with_branch:
        raise ValueError(
            f"{folder} is not castled; run first: castling castle {shlex.quote(str(folder))}, or use --with-branch"
        )
    deployment = saved.task.deployment()
    _, channels, *sides = deployment.example.shape
    deployment = replace(deployment, example=torch.zeros(batch, channels, *(size or sides)))
    network = saved.network
    if finished:
        if deployment.finish is None:
            raise ValueError(f"--finished: nothing is done to outputs of the task {saved.recipe.task}")
        network = deployment.finish(network).eval()
    run = {"recipe": without_places(recipe_values(saved.recipe)), "facts": saved.task.facts}
    predicts = deployment.predicts and not finished
    metadata = describe_deployment(network, deployment, saved.recipe.task, run if predicts else None)
    return Subject(network, deployment.example, metadata, folder / "model", deployment.tolerance, saved.task)


def without_places(recipe: dict[str, Any]) -> dict[str, Any]:
    """A recipe whose files and folders are not said where they were: an exported file goes to other people."""
    found: dict[str, Any] = {}
    for key, value in recipe.items():
        is_place = isinstance(value, str) and "/" in value and key != "name"
        found[key] = without_places(value) if isinstance(value, dict) else Path(value).name if is_place else value
    return found


def _named(name: str, size: Size | None, batch: int, weights: Path | None, with_branch: bool) -> Subject:
    """A model of timm's registry; ours are castled, which changes none of their weights."""
    if not timm.is_model(name):
        check_choice("model or run folder", name, timm.list_models("castling_*") + timm.list_models(name[:4] + "*"))
    options: dict[str, Any] = {} if size is None or name.startswith("castling_") else {"img_size": size}
    if weights is not None:
        options["num_classes"] = head_width(NetworkConfig(name, weights=str(weights)))
    try:
        network: Any = timm.create_model(name, **options)
    except TypeError:  # most convolutional networks take any size, and no such argument
        options.pop("img_size", None)
        network = timm.create_model(name, **options)
    if weights is not None:
        try:
            network.load_state_dict(read_weights(weights, "--weights"))
        except RuntimeError as error:
            raise ValueError(f"{weights} does not fit {name}: {one_line(error)}") from error
    if branches(network) and not with_branch:
        network = castle(network, inplace=True)
    channels, *sides = network.pretrained_cfg["input_size"]
    example = torch.zeros(batch, channels, *(size or sides))
    return Subject(network.eval(), example, describe_network(network, example), Path(name))


def quantize_run(
    subject: Subject,
    seen: Verification,
    data: str | None = None,
    max_loss: float = 0.5,
    allow_slower: bool = False,
    track: Track = lambda batches, count, what: batches,
) -> QuantizationCard:
    """Quantise what was exported: training pictures calibrate it, validation pictures measure it.

    Args:
        subject: a run, opened.
        seen: its file in float32.
        data: another place of the run's pictures.
        max_loss: how much worse the deciding metric may get, in points or in its unit.
        allow_slower: whether a file may be slower here than the one in float32.
        track: shows the progress of so many batches, with a word on what for.

    Raises:
        ValueError: for a file of several pictures at once, or of another size than the run's.
        ExportFailed: if more is lost, or 8 bits are no faster.
    """
    assert subject.task is not None
    if "batch" not in seen.dynamic and len(subject.example) > 1:
        raise ValueError("--int8 measures with any number of pictures: leave --static or --batch out")
    task = subject.task if data is None else subject.task.elsewhere(root=data)
    batch_size = 32 if "batch" in seen.dynamic else 1
    image_size = tuple(subject.example.shape[-2:])

    def pictures(split: str, what: str) -> Iterator[Batch]:
        loader = task.loader(split, batch_size)
        for batch in track(loader, len(loader), what):
            if tuple(batch["image"].shape[-2:]) != image_size:
                raise ValueError(f"--int8 uses the run's pictures as they are: leave --size {image_size} out")
            yield batch

    calibration: list[Tensor] = []
    for batch in pictures("train", "Reading pictures to calibrate"):
        calibration += batch["image"].split(1)
        if len(calibration) >= NUM_CALIBRATION:
            break

    def validate(network: Any) -> Metric:
        meter = task.meter()
        for batch in pictures("val", "Measuring"):
            meter.update(task.forward(network, batch), batch)
        return meter.result()[0]

    out = seen.path.with_name(f"{seen.path.stem}_int8.xml")
    card = quantize(seen.path, out, subject.network, calibration[:NUM_CALIBRATION], validate, max_loss, allow_slower)
    write_file(out.with_suffix(".json"), json_text(card.to_json(), indent=2).encode())
    return card
