"""Multiply-accumulates and parameters, counted the way the paper's tables count them.

MACs are counted where torch dispatches its operators, so that an attention written with matrix products and a fused
one both count. Matrix products and convolutions count; softmax, norms, scalings and sums do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from castling.config import check_choice
from castling.measure.eval_mode import eval_mode

Shape = Sequence[int]
ParameterConvention = Literal["all", "weights"]


aten = torch.ops.aten


def _fused_flops(q: Shape, k: Shape, v: Shape, *_: object, out_shape: object = None, **__: object) -> int:
    return int(sdpa_flop_count(q, k, v))


def _fused_flops_with_softmax(q: Shape, k: Shape, v: Shape, *_: object, out_shape: object = None, **__: object) -> int:
    return int(sdpa_flop_count(q, k, v)) + 2 * math.prod(q[:-1]) * k[-2]


def _softmax_flops(x: Shape, *_: object, out_shape: object = None, **__: object) -> int:
    return 2 * math.prod(x)


# Older torch counts the fused attention of GPUs only.
_FUSED_ON_CPU = {aten._scaled_dot_product_flash_attention_for_cpu: _fused_flops}
_WITH_SOFTMAX = {
    aten._scaled_dot_product_flash_attention_for_cpu: _fused_flops_with_softmax,
    aten._softmax: _softmax_flops,
    aten._safe_softmax: _softmax_flops,
}

_NORM_COSTS: dict[type[nn.Module], int] = {nn.modules.batchnorm._BatchNorm: 2, nn.LayerNorm: 5}


@dataclass(frozen=True)
class MacCount:
    """MACs of one call.

    Args:
        total: MACs of the whole call.
        by_module: MACs of every submodule, its children included, by its name in `named_modules`.
    """

    total: int
    by_module: dict[str, int]


def count_macs(model: Callable[..., object], *inputs: Tensor, norms: bool = False, softmax: bool = False) -> MacCount:
    """Count the MACs of `model(*inputs)`, in evaluation mode and without gradients.

    Args:
        model: a module, which is left as it was, or any function of tensors.
        *inputs: its arguments; tensors on the `meta` device, with a module there, count without computing.
        norms: whether batch norms count with 2 and layer norms with 5 per element, as in some of the paper's tables.
            They join the total only.
        softmax: whether softmax counts with 1 per entry, as in LeViT's own counter.

    Example:
        >>> count_macs(nn.Linear(8, 16), torch.randn(10, 8)).total
        1280
    """
    networks = [model] if isinstance(model, nn.Module) else []
    modules = {name: module for network in networks for name, module in network.named_modules()}
    norm_macs: list[int] = []
    hooks = [
        module.register_forward_hook(lambda _, __, out, cost=cost: norm_macs.append(cost * out.numel()))
        for module in modules.values()
        for kind, cost in _NORM_COSTS.items()
        if norms and isinstance(module, kind)
    ]
    try:
        with (
            torch.no_grad(),
            eval_mode(*networks),
            FlopCounterMode(display=False, custom_mapping=_WITH_SOFTMAX if softmax else _FUSED_ON_CPU) as counter,
        ):
            model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    flops = {name: sum(by_operator.values()) for name, by_operator in counter.get_flop_counts().items()}
    root = type(model).__name__
    names = {name: f"{root}.{name}" for name in modules if name}
    return MacCount(
        total=counter.get_total_flops() // 2 + sum(norm_macs),
        by_module={name: flops.get(path, 0) // 2 for name, path in names.items()},
    )


def count_parameters(model: nn.Module, convention: ParameterConvention = "all") -> int:
    """Count parameters.

    Args:
        model: a module.
        convention: `all`, or `weights`: those of convolutions and linear layers without their biases, as in the
            paper's ImageNet and detection tables.

    Raises:
        ValueError: for an unknown convention.

    Example:
        >>> layer = nn.Linear(8, 16)
        >>> count_parameters(layer), count_parameters(layer, "weights")
        (144, 128)
    """
    check_choice("convention", convention, get_args(ParameterConvention))
    if convention == "all":
        return sum(parameter.numel() for parameter in model.parameters())
    layers = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d)
    weights = {module.weight for module in model.modules() if isinstance(module, layers)}  # a shared one counts once
    return sum(weight.numel() for weight in weights)
