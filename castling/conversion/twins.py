"""The softmax networks beside one with castling attention: what a converted network was, and the twin of ours."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import TypeVar

from torch import nn

from castling.attention import HeadMixer
from castling.conversion.converted import ConvertedAttention, converted_attentions

Model = TypeVar("Model", bound=nn.Module)


def original_of(model: Model) -> Model:
    """A frozen copy of a converted model that computes what its host did: the teacher of what it becomes.

    Args:
        model: a converted model with the host's weights, castled or not.

    Raises:
        ValueError: for a model without converted attention.
    """
    original = copy.deepcopy(model)
    for attention in converted_attentions(original).values():
        _give_softmax_back(attention)
    return original.eval().requires_grad_(False)


def softmax_twin_of(model: Model, names: Collection[str] | None = None) -> Model:
    """A copy with softmax attention in every place, and all else as it is: convolutions, weights, mode.

    Args:
        model: any network; a converted attention becomes its host's again.
        names: the attentions to which this happens; all where None.

    Raises:
        ValueError: if there is no castling attention in it.

    Example:
        >>> from castling import CastlingAttention
        >>> softmax_twin_of(nn.Sequential(CastlingAttention(64, 4)))[0].config.kernel
        'softmax'
    """
    twin = copy.deepcopy(model)
    attentions = {name: module for name, module in twin.named_modules() if isinstance(module, HeadMixer)}
    if not attentions:
        raise ValueError(f"no castling attention in this {type(model).__name__}: it has no softmax twin")
    for attention in (attentions[name] for name in (attentions if names is None else names)):
        if isinstance(attention, ConvertedAttention):
            _give_softmax_back(attention)
        else:
            attention.aux = None
            attention.config = attention.config.with_kernel("softmax")
    return twin


def _give_softmax_back(attention: ConvertedAttention) -> None:
    """Let a converted attention compute what its host did, castled or not."""
    attention.aux = None
    attention.castled = False
    attention.blend = 0.0
