"""Teachers: a timm model, a checkpoint of one, or a folder of logits that were computed beforehand.

The paper trains classification with DeiT's distillation from a teacher of 85.5 % accuracy.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import timm
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from timm.models import load_checkpoint
from torch import Tensor, nn

from castling.measure.plain_json import parse_json
from castling.plain_values import plain_value
from castling.sentences import one_line
from castling.tasks.networks import read_weights
from castling.tensor_files import parse_safetensors

LOGITS, NAMES = "logits.safetensors", "names.json"


@dataclass(frozen=True)
class DistillationConfig:
    """Whom to follow, and how closely.

    Args:
        kind: `hard` follows the teacher's choices, `soft` its probabilities.
        model: a name in timm's registry; or `self`, for a converted network to follow the one that it was.
        weights: its checkpoint; None for those that timm downloads.
        logits: folder of precomputed logits, instead of a model; written by `castling evaluate --answers`.
        alpha: share of the teacher in the loss.
        temperature: softens the probabilities of both; `soft` only.

    Raises:
        ValueError: without a teacher or with two, or for numbers outside their range.
    """

    kind: Literal["hard", "soft"] = "hard"
    model: str | None = None
    weights: str | None = None
    logits: str | None = None
    alpha: float = 0.5
    temperature: float = 3.0

    def __post_init__(self) -> None:
        if (self.model is None) == (self.logits is None):
            raise ValueError("a teacher is either a model or a folder of logits; set one of 'model' and 'logits'")
        if self.model not in (None, "self") and not timm.is_model(self.model):
            raise ValueError(f"timm knows no teacher {self.model!r}; timm.list_models() lists what it knows")
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha is a share from 0 to 1; got {self.alpha}")
        if not self.temperature > 0:
            raise ValueError(f"temperature must be above 0; got {self.temperature}")


class Teacher(Protocol):
    """Gives logits `(B, classes)` for a batch of pictures, normalised for the student, with their places `(B,)`."""

    def __call__(self, images: Tensor, indices: Tensor) -> Tensor:
        """Logits of a batch."""


class ModelTeacher:
    """A network as teacher; pictures are normalised and resized the way it wants them."""

    def __init__(self, model: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        self.model = model.eval().requires_grad_(False)
        wants = getattr(model, "pretrained_cfg", None) or {}
        # x * std + mean undoes the student's normalisation; the teacher's follows, in one scale and one shift.
        own_std, own_mean = (torch.tensor(wants.get(key, value)) for key, value in (("std", std), ("mean", mean)))
        if len(own_mean) != len(mean):  # a teacher for colours that looks at grey pictures
            own_std, own_mean = own_std.mean(), own_mean.mean()
        self.scale = (torch.tensor(std) / own_std)[:, None, None]
        self.shift = ((torch.tensor(mean) - own_mean) / own_std)[:, None, None]
        self.size = wants.get("input_size", (3, 0, 0))[-2:] if wants.get("fixed_input_size") else None

    @torch.no_grad()
    def __call__(self, images: Tensor, indices: Tensor) -> Tensor:
        """Logits of the teacher."""
        if self.scale.device != images.device:
            self.model.to(images.device)
            self.scale, self.shift = self.scale.to(images.device), self.shift.to(images.device)
        images = images * self.scale + self.shift
        if self.size is not None and images.shape[-2:] != torch.Size(self.size):
            images = F.interpolate(images, self.size, mode="bicubic", antialias=True)
        logits: Tensor = self.model(images)
        return logits


class LogitsTeacher:
    """Logits from a folder, in the order of the training examples."""

    def __init__(self, folder: Path, names: Sequence[str], num_classes: int) -> None:
        logits, known = read_logits(folder)
        place = {name: number for number, name in enumerate(known)}
        missing = [name for name in names if name not in place]
        if missing:
            raise ValueError(f"{folder} has no logits for {len(missing)} training pictures, such as {missing[0]!r}")
        if logits.shape[1] != num_classes:
            raise ValueError(f"the logits in {folder} are of {logits.shape[1]} classes, the data of {num_classes}")
        self.logits = logits[[place[name] for name in names]]

    def __call__(self, images: Tensor, indices: Tensor) -> Tensor:
        """Logits of these examples."""
        return self.logits[indices.cpu()].to(images.device)


def make_teacher(
    config: DistillationConfig,
    names: Sequence[str],
    num_classes: int,
    channels: int,
    mean: Sequence[float],
    std: Sequence[float],
) -> Teacher:
    """The teacher of a recipe.

    Args:
        config: which.
        names: the training pictures, in order.
        num_classes: the number of classes of the data; a model's must be the same.
        channels: the number of channels of the pictures.
        mean: the mean of the student's normalisation.
        std: the standard deviation of the student's normalisation.

    Raises:
        ValueError: if a model or a folder of logits does not fit the data.
    """
    if config.logits is not None:
        return LogitsTeacher(Path(config.logits), names, num_classes)
    if config.weights is None:
        model = timm.create_model(config.model, pretrained=True, in_chans=channels)
        if model.num_classes != num_classes:
            raise ValueError(f"teacher {config.model} knows {model.num_classes} classes, the data {num_classes}")
        return ModelTeacher(model, mean, std)
    read_weights(config.weights, "distillation.weights")  # refuses what is none, before timm fits it to the model
    model = timm.create_model(config.model, num_classes=num_classes, in_chans=channels)
    try:
        load_checkpoint(model, config.weights, device="cpu", weights_only=True)
    except Exception as error:  # each format of weights raises its own
        raise ValueError(
            f"the teacher's weights {config.weights} do not fit {config.model}: {one_line(error)}"
        ) from error
    return ModelTeacher(model, mean, std)


def write_logits(folder: Path, logits: Tensor, names: Sequence[str]) -> None:
    """Write logits `(examples, classes)` with the names of the examples, for a later `LogitsTeacher`."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({"logits": logits.contiguous()}, folder / LOGITS)
    (folder / NAMES).write_text(json.dumps(list(names)))


def read_logits(folder: Path) -> tuple[Tensor, list[str]]:
    """Logits and names that `write_logits` wrote.

    Raises:
        ValueError: if the folder holds none, they are damaged, or they do not belong together.
    """
    if not (folder / LOGITS).is_file() or not (folder / NAMES).is_file():
        raise ValueError(f"{folder} holds no logits: expected {LOGITS} and {NAMES}")
    try:
        logits = parse_safetensors((folder / LOGITS).read_bytes(), LOGITS).get("logits")
        names = plain_value(parse_json((folder / NAMES).read_bytes(), NAMES), list[str], NAMES)
    except ValueError as error:
        raise ValueError(f"the logits in {folder} are damaged: {error}") from error
    if logits is None or logits.ndim != 2 or not logits.is_floating_point():
        raise ValueError(f"the logits in {folder} are damaged: {LOGITS} has no numbers 'logits' (examples, classes)")
    if len(logits) != len(names):
        raise ValueError(f"{folder} has {len(logits)} logits for {len(names)} names")
    return logits, names
