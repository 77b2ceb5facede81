"""Which attentions of a network to castle, by its times on the machine at hand.

Linear attention wins where tokens are many. So the network is timed with all attentions of one kind castled, for every
kind, in the engine that will run it: a layer by itself takes another time than among others, which an engine joins with
it. The kinds that save time are taken, and the network that this gives has to win beside the original.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from castling.attention import HeadMixer
from castling.config import AttentionConfig
from castling.conversion import castle, convert, has_castling_attention, softmax_twin_of
from castling.conversion.folding import optimize
from castling.conversion.inspection import preview, survey
from castling.exporting.engines import EngineName, on_engine
from castling.measure import time_interleaved
from castling.models.input_size import check_image_size, patch_size


@dataclass(frozen=True)
class LayerTimes:
    """What castling one layer saves.

    Args:
        name: name of the attention in the network.
        shape: shape of its input, `(B, N, C)` or `(B, H, W, C)`.
        saved_ms: by how much the whole network is faster with all attentions of this kind castled, divided by their
            number; below 0 where it is slower.
    """

    name: str
    shape: tuple[int, ...]
    saved_ms: float

    @property
    def castle(self) -> bool:
        """Whether the network is faster for it."""
        return self.saved_ms > 0


@dataclass(frozen=True)
class SpeedPlan:
    """Which attentions to castle, and what that gives.

    Args:
        layers: every attention that can be converted, in the order of the network.
        original_ms: median time of the network as it is.
        predicted_ms: time that the hybrid should take, by what its layers save.
        hybrid_ms: median time of the hybrid, taking turns with the original.
        chosen: names of the attentions to castle: `convert(model, only=plan.chosen)`. Empty where the hybrid lost. Of a
            network with castling attention, those that gain by it.
        network: the hybrid as it infers, castled and folded, or the original where that lost. Castled attentions have
            the original's weights and need training.
    """

    layers: tuple[LayerTimes, ...]
    original_ms: float
    predicted_ms: float
    hybrid_ms: float
    chosen: tuple[str, ...]
    network: nn.Module

    @property
    def planned_ms(self) -> float:
        """Median time of `network`."""
        return self.hybrid_ms if self.chosen else self.original_ms

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        layers = [{**vars(layer), "castle": layer.name in self.chosen} for layer in self.layers]
        names = ("original_ms", "predicted_ms", "hybrid_ms", "planned_ms")
        return {**{name: getattr(self, name) for name in names}, "chosen": list(self.chosen), "layers": layers}


def plan_speed(
    model: nn.Module,
    example: Tensor,
    engine: EngineName | str = "eager",
    threads: int | None = None,
    config: AttentionConfig | None = None,
    only: str | Iterable[str] | None = None,
    repeats: int = 9,
    on_step: Callable[[int, int], None] = lambda done, total: None,
) -> SpeedPlan:
    """Time a network with each kind of its attentions castled, and build the one with those that save time.

    Args:
        model: a network of a family that `convert` knows, or one with castling attention, beside its softmax twin;
            left as it is.
        example: an image batch `(B, C, H, W)` of the size to plan for.
        engine: a name in `ENGINES`.
        threads: number of threads; torch's by default.
        config: kernel, branch and convolution; the authors' block where None.
        only: attentions to think of, as for `convert`; all where None.
        repeats: rounds in which candidates take turns.
        on_step: listener, called with the number of measurements done and their total.

    Raises:
        ValueError: as `convert` does, for a network without attentions that it knows; for an unknown engine, or an
            image that its patches do not fill.
    """
    patch = patch_size(model)
    if patch:
        check_image_size((example.shape[-2], example.shape[-1]), patch)
    original = optimize(softmax_twin_of(model) if has_castling_attention(model) else model)
    names = _names(model, config, only)
    inputs = _inputs(original, names, example)
    by_kind: dict[str, list[str]] = {}
    for name in names:
        by_kind.setdefault(_kind(original.get_submodule(name), inputs[name]), []).append(name)
    total = len(by_kind) + 2

    def on(network: nn.Module, step: int) -> Callable[[], object]:
        on_step(step, total)
        return partial(on_engine(network, example, engine, threads), example)

    passes = {"original": on(original, 0)}
    for step, (kind, members) in enumerate(by_kind.items()):
        passes[kind] = on(_hybrid(model, config, members), step + 1)
    timings = time_interleaved(passes, repeats=repeats)
    saved = {
        name: 1e3 * (timings["original"].median - timings[kind].median) / len(members)
        for kind, members in by_kind.items()
        for name in members
    }
    layers = tuple(LayerTimes(name, tuple(_leading(inputs[name]).shape), saved[name]) for name in names)
    chosen = tuple(layer.name for layer in layers if layer.castle)
    original_ms = hybrid_ms = predicted_ms = 1e3 * timings["original"].median
    network = original
    if chosen:
        hybrid = _hybrid(model, config, chosen)
        passes = {"original": passes["original"], "hybrid": on(hybrid, total - 1)}
        timings = time_interleaved(passes, repeats=repeats)
        original_ms, hybrid_ms = (1e3 * timings[name].median for name in passes)
        predicted_ms = original_ms - sum(saved[name] for name in chosen)
        chosen, network = (chosen, hybrid) if hybrid_ms <= original_ms else ((), original)
    on_step(total, total)
    return SpeedPlan(layers, original_ms, predicted_ms, hybrid_ms, chosen, network)


def _names(model: nn.Module, config: AttentionConfig | None, only: str | Iterable[str] | None) -> list[str]:
    """Attentions that are castling attention or can become it; what cannot stays as it is."""
    if has_castling_attention(model):
        found = survey(model, AttentionConfig(), only)
        return [site.name for site, _, layer in found if isinstance(site.module, HeadMixer) and layer.action != "keep"]
    previewed = preview(model, config, only)
    names = previewed.names("replace")
    if not names:
        previewed.check()
    return names


def _hybrid(model: nn.Module, config: AttentionConfig | None, names: Sequence[str]) -> nn.Module:
    """The network with some attentions castled and softmax in the others, as it infers."""
    if has_castling_attention(model):
        others = [name for name, module in model.named_modules() if isinstance(module, HeadMixer) and name not in names]
        converted = softmax_twin_of(model, others)
    else:
        converted = convert(model, config, only=names, blend=1.0, inplace=False)
    return optimize(castle(converted, inplace=True), inplace=True)


def _inputs(network: nn.Module, names: Iterable[str], example: Tensor) -> dict[str, tuple[Any, Any]]:
    """What each attention is called with."""
    calls: dict[str, tuple[Any, Any]] = {}

    def note(name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        calls[name] = copy.deepcopy((args, kwargs))

    hooks = [
        network.get_submodule(name).register_forward_pre_hook(partial(note, name), with_kwargs=True) for name in names
    ]
    try:
        with torch.inference_mode(False), torch.no_grad():
            network(example)
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def _leading(call: tuple[Any, Any]) -> Tensor:
    """The first tensor of a call: the tokens."""
    return next(leaf for leaf in tree_flatten(call)[0] if isinstance(leaf, Tensor))


def _kind(attention: nn.Module, call: tuple[Any, Any]) -> str:
    """The same for attentions that take the same time: of the same parts, called with the same shapes."""
    settings = {name: value for name, value in vars(attention).items() if isinstance(value, (int, float, str, tuple))}
    leaves, spec = tree_flatten(call)
    shapes = [tuple(leaf.shape) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    return f"{attention!r} {settings} {spec} {shapes}"
