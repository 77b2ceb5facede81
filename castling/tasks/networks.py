"""The network of a recipe, whatever its task: timm's and ours by name, or a folder of Hugging Face's transformers.

It gets its starting weights, is converted where the recipe says so, and fitted to another picture size.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import timm
import torch
from timm.models import load_state_dict
from timm.models._features import FeatureGetterNet
from torch import Tensor, nn

import castling.models  # noqa: F401 - registers castling_*
from castling.config import AttentionConfig, KernelName, check_choice
from castling.conversion import calibrate, convert, original_of
from castling.models.input_size import at_size
from castling.models.levit_attention import LevitDesign
from castling.models.pretrained import load_host_weights
from castling.sentences import one_line, shown
from castling.tasks.huggingface import is_huggingface, make_huggingface, read_huggingface
from castling.tensor_files import refuse_packed, refuse_swollen

# What networks of tasks call the network that they are built on, and what wrappers of it call the one inside.
INNER_NAMES = ("backbone.", "model.", "vit.")
COUNTS = ("depth", "num_heads", "embed_dim", "patch_size", "img_size")  # options that are at least 1, each or all
# What timm's networks raise for options that they cannot be made with, beside ValueError.
MAKING_ERRORS = (AssertionError, RuntimeError, TypeError, AttributeError, LookupError, ArithmeticError)
TWO_LABELS = ("LABEL_0", "LABEL_1")  # what transformers has by default, and then does not save


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
class NetworkConfig:
    """A network.

    Args:
        name: a name in timm's registry, such as `castling_deit_tiny_patch16_224`, or a folder with a network that
            transformers saved.
        kernel: another kernel for a Castling model; `softmax` gives the baseline twin.
        attention: options of the attention (all but Castling-LeViT).
        design: options of the attention's design (Castling-LeViT).
        options: whatever else the network takes, such as `depth` or `patch_size`.
        weights: file with weights to start from; those of a head with other outputs are left out. Of a task's whole
            network those of its backbone are taken.
        convert: castling attention for a plain network, put in after its weights are loaded.
        input_size: another picture size than that of the weights; position embeddings are resampled to it.

    Raises:
        ValueError: for a name that is not registered, or options outside their range.
    """

    name: str
    kernel: KernelName | None = None
    attention: AttentionConfig | None = None
    design: LevitDesign | None = None
    options: dict[str, Any] = field(default_factory=dict)
    weights: str | None = None
    convert: ConvertConfig | None = None
    input_size: int | None = None

    def __post_init__(self) -> None:
        if "/" not in self.name and not timm.is_model(self.name):
            check_choice("model", self.name, timm.list_models("castling_*") + timm.list_models(self.name[:4] + "*"))
        given = [name for name in ("kernel", "attention", "design") if getattr(self, name) is not None]
        if given and not self.name.startswith("castling_"):
            raise ValueError(f"{', '.join(given)}: only Castling models have these; {self.name} is not one of them")
        for name, value in self.options.items():
            numbers = [number for number in _flat(value) if isinstance(number, (int, float))]
            if name in COUNTS and min(numbers, default=1) < 1:
                raise ValueError(f"options.{name} must be at least 1; got {shown(value)}")
            if name.endswith("_rate") and not all(0 <= number < 1 for number in numbers):
                raise ValueError(f"options.{name} must lie in [0, 1); got {shown(value)}")
        if self.input_size is not None and self.input_size < 1:
            raise ValueError(f"input_size must be at least 1; got {self.input_size}")


def _flat(value: Any) -> Iterator[Any]:
    """What a list of lists holds, in whatever depth; a single value is its own."""
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from _flat(part)
    else:
        yield value


def network_facts(config: NetworkConfig) -> dict[str, Any]:
    """What is to be kept of a network that is not in timm's registry, so that it can be made without its folder.

    Raises:
        ValueError: if the network is named by a folder that is not there.
    """
    if is_huggingface(config.name):
        return {"transformers": read_huggingface(config.name)}
    if timm.is_model(config.name) or ":" in config.name:  # timm's own, or at a place that it knows
        return {}
    raise _no_folder(config.name)


def make_network(config: NetworkConfig, num_outputs: int | None, channels: int, facts: Mapping[str, Any]) -> nn.Module:
    """Create the network, converted where the configuration says so, for weights that will be loaded.

    Args:
        config: which network.
        num_outputs: the width of its head; 0 for features without a head, None for maps of several stages (timm's
            `features_only`).
        channels: the number of channels of the pictures.
        facts: what `network_facts` gave.

    Raises:
        ValueError: for options that it does not take.
    """
    network = _make_plain(config, num_outputs, channels, facts)
    if config.convert is not None:
        network = convert(network, config.convert.attention, config.convert.only)
    return network if config.input_size is None else at_size(network, config.input_size)


def start_network(
    config: NetworkConfig, num_outputs: int | None, channels: int, facts: Mapping[str, Any], batches: Iterable[Any]
) -> tuple[nn.Module, nn.Module | None]:
    """Create the network as training begins: with its starting weights, and the scales of its heads if converted.

    Args:
        config: which network.
        num_outputs: the width of its head; 0 for features without a head, None for maps of several stages (timm's
            `features_only`).
        channels: the number of channels of the pictures.
        facts: what `network_facts` gave.
        batches: training pictures, from which a converted network learns the scales of its heads.

    Returns:
        The network, and what it was before it was converted, frozen; None for one that is not.

    Raises:
        ValueError: for options that it does not take, or weights that do not fit.
    """
    start = Path(config.name) if config.weights is None and "transformers" in facts else None
    if start is not None and not is_huggingface(config.name):
        raise _no_folder(config.name)
    network = _make_plain(config, num_outputs, channels, facts, start)
    if config.weights is not None:
        load_start(network, config.weights)
    size = config.input_size
    if config.convert is None:
        return (network if size is None else at_size(network, size)), None
    network = convert(network, config.convert.attention, config.convert.only)
    original = original_of(network)
    if config.convert.start is not None:
        _load_stage(network, config.convert.start)
    if size is not None:
        network, original = at_size(network, size), at_size(original, size)
    if config.convert.start is None and config.convert.calibrate:
        calibrate(network, itertools.islice(batches, config.convert.calibrate))
    return network, original


def _make_plain(
    config: NetworkConfig, num_outputs: int | None, channels: int, facts: Mapping[str, Any], start: Path | None = None
) -> nn.Module:
    if "transformers" in facts:
        if num_outputs is None:
            raise ValueError(
                f"{config.name}: networks of transformers give no maps of several stages; take one of timm's"
            )
        return make_huggingface(facts["transformers"], num_outputs, channels, config.options, start)
    ours = {name: getattr(config, name) for name in ("kernel", "attention", "design")}
    head = {"features_only": True} if num_outputs is None else {"num_classes": num_outputs}
    try:
        network: nn.Module = timm.create_model(config.name, in_chans=channels, **head, **ours, **config.options)
    except MAKING_ERRORS as error:
        options, said = one_line(config.options), one_line(error) or type(error).__name__
        raise ValueError(f"{config.name} cannot be made with options {options}: {said}") from error
    return network


def _no_folder(name: str) -> ValueError:
    return ValueError(f"there is no folder {name} with a network that transformers saved")


def head_width(config: NetworkConfig) -> int:
    """Outputs of the network as its weights have them; those of timm's own where no weights are named."""
    if is_huggingface(config.name):
        saved = read_huggingface(config.name)
        labels = saved.get("id2label") or TWO_LABELS
        return len(labels) if "Classification" in saved["architectures"][0] else 0
    known = timm.get_pretrained_cfg(config.name)
    if config.weights is None:
        return int(known.num_classes if known else 0)
    classifiers = (known.classifier if known else None) or "head"
    weights = read_weights(config.weights, "model.weights")
    first = classifiers if isinstance(classifiers, str) else classifiers[0]
    found: Tensor | None = weights.get(f"{first}.weight", weights.get(f"{first}.l.weight"))
    return 0 if found is None or not found.ndim else len(found)


def read_weights(path: str | Path, place: str) -> dict[str, Tensor]:
    """Weights of any format that timm reads, without running code in them.

    Args:
        path: the file.
        place: what asks for it, for messages.

    Raises:
        ValueError: if there is no such file, or no weights in it.
    """
    if not Path(path).is_file():
        raise ValueError(f"{place}: there is no file {path}")
    refuse_packed(Path(path), f"{place}: {path}")
    try:
        weights = dict(load_state_dict(str(path), device="cpu", weights_only=True))
    except Exception as error:  # each format of weights raises its own
        raise ValueError(f"{place}: {path} holds no weights: {one_line(error)}") from error
    other = next((name for name, value in weights.items() if not isinstance(value, Tensor)), None)
    if other is not None:
        raise ValueError(f"{place}: {path} holds no weights: {shown(other)} is a {type(weights[other]).__name__}")
    refuse_swollen(weights, Path(path).stat().st_size, f"{place}: {path}")
    odd = next((name for name, value in weights.items() if value.layout != torch.strided or value.is_meta), None)
    if odd is not None:
        raise ValueError(f"{place}: {path} holds no weights: {shown(odd)} is a tensor without numbers of its own")
    return weights


def _load_stage(network: nn.Module, path: str) -> None:
    """Load weights of an earlier stage into the same converted network."""
    try:
        network.load_state_dict(read_weights(path, "model.convert.start"))
    except RuntimeError as error:
        raise ValueError(
            f"model.convert.start: {path} does not fit the converted network: {one_line(error)}"
        ) from error


def load_start(network: Any, path: str | Path) -> None:
    """Load weights to start from: of the same network, of the plain one it was made from, or of a whole around it.

    Args:
        network: any; its head stays new where the file has none of its size.
        path: the file.

    Raises:
        ValueError: if there is no such file, no weights in it, or they do not fit.
    """
    maps = isinstance(network, FeatureGetterNet)
    network = network.model if maps else network
    own = network.state_dict()
    weights = weights_inside(read_weights(path, "model.weights"), own)
    if maps:  # of stages: it has no head, and may have fewer stages
        weights = {name: weights[name] for name in own if name in weights}
    classifiers = (getattr(network, "pretrained_cfg", None) or {}).get("classifier") or "head"  # timm's name, or names
    heads = ("head", *([classifiers] if isinstance(classifiers, str) else classifiers))
    for name, value in own.items():
        if name.startswith(heads) and (name not in weights or weights[name].shape != value.shape):
            weights[name] = value
    fitting = {name: value for name, value in weights.items() if name in own or not name.startswith(heads)}
    try:
        load_host_weights(network, fitting)
    except ValueError as error:
        raise ValueError(f"model.weights: {path}: {error}") from error


def weights_inside(weights: Mapping[str, Tensor], wanted: Iterable[str]) -> dict[str, Tensor]:
    """Of the weights of a whole network, those of the network that it is built on, under that one's names.

    Args:
        weights: such as `backbone.*` beside those of other parts.
        wanted: the names that the network inside has.

    Example:
        >>> import torch
        >>> whole = {"backbone.vit.norm.bias": torch.zeros(2), "backbone.up.bias": torch.zeros(2)}
        >>> list(weights_inside(whole, ["norm.bias"])), list(weights_inside(whole, list(whole)))
        (['norm.bias'], ['backbone.vit.norm.bias', 'backbone.up.bias'])
    """
    found, names = dict(weights), list(wanted)
    for prefix in INNER_NAMES:
        inside = {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)}
        if inside and not any(name.startswith(prefix) for name in names):
            found = inside
    return found
