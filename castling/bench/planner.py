"""Which attentions of a network to castle, by their times on the machine at hand.

Linear attention wins where tokens are many. So both attentions of every layer are timed on its own inputs, in the
engine that will run them, and the faster one is taken; the whole network is then timed beside the original, and has to
win there too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from castling.attention import HeadMixer
from castling.config import AttentionConfig
from castling.conversion import castle, convert, has_castling_attention, softmax_twin_of
from castling.conversion.folding import optimize
from castling.conversion.inspection import preview, survey
from castling.exporting.engines import EngineName, on_engine
from castling.measure import Timing, time_interleaved
from castling.models.input_size import check_image_size, patch_size


@dataclass(frozen=True)
class LayerTimes:
    """Both attentions of one layer.

    Args:
        name: name of the attention in the network.
        shape: shape of its input, `(B, N, C)` or `(B, H, W, C)`.
        softmax_ms: median time of the original.
        castled_ms: median time of castling attention in its place.
    """

    name: str
    shape: tuple[int, ...]
    softmax_ms: float
    castled_ms: float

    @property
    def castle(self) -> bool:
        """Whether castling attention is the faster one."""
        return self.castled_ms < self.softmax_ms


@dataclass(frozen=True)
class SpeedPlan:
    """Which attentions to castle, and what that gives.

    Args:
        layers: times of every attention that can be converted, in the order of the network.
        original_ms: median time of the network as it is.
        predicted_ms: time that the hybrid should take, by those of its layers.
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
    """Time both attentions of every layer in an engine, and build the network with the faster ones.

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
    castled = _hybrid(model, config, names)
    inputs = _inputs(original, names, example)
    with torch.no_grad():
        castled(example)  # leaves the grid of the tokens with each attention
    kinds = {name: _kind(original.get_submodule(name), inputs[name]) for name in names}
    total = len(set(kinds.values())) + 1
    found: dict[str, dict[str, Timing]] = {}
    for name in names:
        if kinds[name] not in found:  # layers of one kind and one shape take the same time
            on_step(len(found), total)
            passes = {}
            for label, network in (("softmax", original), ("castled", castled)):
                layer, x = _pass(network.get_submodule(name), *inputs[name])
                passes[label] = partial(on_engine(layer, x, engine, threads), x)
            found[kinds[name]] = time_interleaved(passes, repeats=repeats)
    times = [(name, found[kinds[name]]) for name in names]
    layers = tuple(
        LayerTimes(
            name, tuple(_leading(inputs[name]).shape), 1e3 * pair["softmax"].median, 1e3 * pair["castled"].median
        )
        for name, pair in times
    )
    on_step(total - 1, total)
    chosen = tuple(layer.name for layer in layers if layer.castle)
    hybrid = _hybrid(model, config, chosen) if chosen else original
    networks = {"original": original, "hybrid": hybrid} if chosen else {"original": original}
    timings = time_interleaved(
        {name: partial(on_engine(network, example, engine, threads), example) for name, network in networks.items()},
        repeats=repeats,
    )
    original_ms = 1e3 * timings["original"].median
    hybrid_ms = 1e3 * timings["hybrid"].median if chosen else original_ms
    predicted_ms = original_ms - sum(layer.softmax_ms - layer.castled_ms for layer in layers if layer.castle)
    on_step(total, total)
    if chosen and hybrid_ms > original_ms:
        chosen, hybrid = (), original
    return SpeedPlan(layers, original_ms, predicted_ms, hybrid_ms, chosen, hybrid)


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


def _hybrid(model: nn.Module, config: AttentionConfig | None, names: Collection[str]) -> nn.Module:
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


class _Layer(nn.Module):
    """An attention as a function of the tokens alone; all that it is called with besides is fixed."""

    def __init__(self, attention: nn.Module, leaves: list[Any], spec: Any) -> None:
        super().__init__()
        self.attention, self._leaves, self._spec = attention, leaves, spec

    def forward(self, x: Tensor) -> Tensor:
        leaves = [x if leaf is _TOKENS else leaf for leaf in self._leaves]
        args, kwargs = tree_unflatten(leaves, self._spec)
        found = self.attention(*args, **kwargs)
        return found if isinstance(found, Tensor) else found[0]


_TOKENS = object()


def _pass(attention: nn.Module, args: Any, kwargs: Any) -> tuple[nn.Module, Tensor]:
    """An attention by itself, and its tokens."""
    tokens = _leading((args, kwargs))
    leaves, spec = tree_flatten((args, kwargs))
    return _Layer(attention, [_TOKENS if leaf is tokens else leaf for leaf in leaves], spec).eval(), tokens


def _leading(call: tuple[Any, Any]) -> Tensor:
    """The first tensor of a call: the tokens."""
    return next(leaf for leaf in tree_flatten(call)[0] if isinstance(leaf, Tensor))


def _kind(attention: nn.Module, call: tuple[Any, Any]) -> str:
    """The same for attentions that take the same time: of the same parts, called with the same shapes."""
    settings = {name: value for name, value in vars(attention).items() if isinstance(value, (int, float, str, tuple))}
    leaves, spec = tree_flatten(call)
    shapes = [tuple(leaf.shape) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    return f"{attention!r} {settings} {spec} {shapes}"
