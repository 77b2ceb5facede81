"""The network of a classification recipe: any model of timm's registry, ours with their options checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import timm
from timm.models import load_state_dict
from torch import nn

import castling.models  # noqa: F401 - registers castling_*
from castling.config import AttentionConfig, KernelName, check_choice
from castling.conversion import convert
from castling.models.levit_attention import LevitDesign
from castling.models.pretrained import load_host_weights


@dataclass(frozen=True)
class ConvertConfig:
    """Castling attention in a plain network, around its weights.

    Args:
        attention: castling attention. By default without the auxiliary branch: the host's own softmax, which
            `training.blend` fades out, takes its place.
        only: names of attentions or patterns, such as those that `castling plan` gives; None for all.
        calibrate: batches of training pictures from which every head learns its scale; 0 for no scale.
        start: file with weights of an earlier stage, of the converted network.
    """

    attention: AttentionConfig = field(default_factory=lambda: AttentionConfig(aux=False))
    only: list[str] | None = None
    calibrate: int = 4
    start: str | None = None


@dataclass(frozen=True)
class ModelConfig:
    """A network.

    Args:
        name: in timm's registry, such as `castling_deit_tiny_patch16_224`.
        kernel: another kernel for a Castling model; `softmax` gives the baseline twin.
        attention: options of the attention (Castling-DeiT and -MViTv2).
        design: options of the attention's design (Castling-LeViT).
        options: whatever else the network takes, such as `depth` or `patch_size`.
        weights: file with weights to start from; those of a head with other classes are left out.
        convert: put castling attention into a plain network, after its weights are loaded.

    Raises:
        ValueError: for a name that is not registered.
    """

    name: str
    kernel: KernelName | None = None
    attention: AttentionConfig | None = None
    design: LevitDesign | None = None
    options: dict[str, Any] = field(default_factory=dict)
    weights: str | None = None
    convert: ConvertConfig | None = None

    def __post_init__(self) -> None:
        if not timm.is_model(self.name):
            check_choice("model", self.name, timm.list_models("castling_*") + timm.list_models(self.name[:4] + "*"))
        given = [name for name in ("kernel", "attention", "design") if getattr(self, name) is not None]
        if given and not self.name.startswith("castling_"):
            raise ValueError(f"{', '.join(given)}: only Castling models have these; {self.name} is not one of them")


def build_model(config: ModelConfig, num_classes: int, channels: int) -> nn.Module:
    """Create the network, with its starting weights where the recipe names some.

    Raises:
        ValueError: for options that it does not take, or weights that do not fit.
    """
    ours = {name: getattr(config, name) for name in ("kernel", "attention", "design")}
    try:
        model: nn.Module = timm.create_model(
            config.name, num_classes=num_classes, in_chans=channels, **ours, **config.options
        )
    except (AssertionError, TypeError) as error:
        raise ValueError(f"{config.name} cannot be made with options {config.options}: {error}") from error
    if config.weights is not None:
        _load_start(model, config.weights)
    return model if config.convert is None else convert(model, config.convert.attention, config.convert.only)


def load_stage(model: nn.Module, path: str) -> None:
    """Load weights of an earlier stage into the same converted network.

    Raises:
        ValueError: if there are none, or they do not fit.
    """
    try:
        model.load_state_dict(_read(path, "model.convert.start"))
    except RuntimeError as error:
        raise ValueError(f"model.convert.start: {path} does not fit the converted network: {error}") from error


def _load_start(model: Any, path: str) -> None:
    """Load weights of the same network, or of the plain one it was made from; a head of another size stays new."""
    weights = _read(path, "model.weights")
    classifiers = (model.pretrained_cfg or {}).get("classifier") or "head"  # timm's name of it, or names
    heads = ("head", *([classifiers] if isinstance(classifiers, str) else classifiers))
    for name, value in model.state_dict().items():
        if name.startswith(heads) and (name not in weights or weights[name].shape != value.shape):
            weights[name] = value
    load_host_weights(model, weights)


def _read(path: str, place: str) -> dict[str, Any]:
    if not Path(path).is_file():
        raise ValueError(f"{place}: there is no file {path}")
    try:
        return dict(load_state_dict(path, device="cpu", weights_only=True))
    except Exception as error:  # each format of weights raises its own
        raise ValueError(f"{place}: {path} holds no weights: {error}") from error
