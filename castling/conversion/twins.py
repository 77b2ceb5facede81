"""The softmax networks beside one with castling attention: what a converted network was, and the twin of ours."""

from __future__ import annotations

import copy
from typing import TypeVar

from torch import nn

from castling.attention import HeadMixer
from castling.conversion.converted import ConvertedAttention, set_blend

Model = TypeVar("Model", bound=nn.Module)


def original_of(model: Model) -> Model:
    """A frozen copy of a converted model that computes what its host did: the teacher of what it becomes.

    Args:
        model: converted, with the host's weights.

    Raises:
        ValueError: for a model without converted attention.
    """
    original = copy.deepcopy(model)
    set_blend(original, 0.0)
    return original.eval().requires_grad_(False)


def softmax_twin_of(model: Model) -> Model:
    """A copy with softmax attention in every place, and all else as it is: convolutions, weights, mode.

    Args:
        model: any network; a converted attention becomes its host's again.

    Raises:
        ValueError: if there is no castling attention in it.

    Example:
        >>> from castling import CastlingAttention
        >>> softmax_twin_of(nn.Sequential(CastlingAttention(64, 4)))[0].config.kernel
        'softmax'
    """
    twin = copy.deepcopy(model)
    attentions = [module for module in twin.modules() if isinstance(module, HeadMixer)]
    if not attentions:
        raise ValueError(f"no castling attention in this {type(model).__name__}: it has no softmax twin")
    for attention in attentions:
        attention.aux = None
        if isinstance(attention, ConvertedAttention):
            attention.blend = 0.0
        else:
            attention.config = attention.config.with_kernel("softmax")
    return twin
