"""Castling: drop the auxiliary branch, for good or for a moment (Sec. 3.2.2, "Castling During ViT Inference").

The branch owns no parameters, so the state dict is the same on both sides of the switch.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from torch import nn

from castling.attention import HeadMixer
from castling.config import check_type
from castling.conversion.converted import ConvertedAttention, check_blend_done

Model = TypeVar("Model", bound=nn.Module)


def castle(model: Model, inplace: bool = False) -> Model:
    """Drop the auxiliary branch of every attention; what is left is dense and linear in the number of tokens.

    Whether this changes the outputs depends on the masks: with empty masks they stay bitwise equal.

    Args:
        model: a model with castling attention in it.
        inplace: whether the model itself changes instead of a copy.

    Returns:
        The castled model, with the same `state_dict` keys. A model without branches is returned as it is (a copy).

    Raises:
        ValueError: if there is no castling attention in the model.

    Example:
        >>> from castling import CastlingAttention
        >>> attention = CastlingAttention(64, num_heads=4)
        >>> is_castled(castle(attention)), is_castled(attention)
        (True, False)
    """
    _attentions_or_error(model)  # before the copy
    check_blend_done(model)
    model = model if inplace else copy.deepcopy(model)
    for attention in _attentions(model):
        _switch(attention)
    return model


@contextmanager
def castled(model: Model) -> Iterator[Model]:
    """Switch the auxiliary branches off and, on leaving, on again: to measure the castling gap while training.

    A converted attention gives castling attention alone for the moment, whatever its blend: what `castle` will give
    at the end.

    Args:
        model: a model with castling attention in it; changed in place for the time being.

    Raises:
        ValueError: if there is no castling attention in the model.

    Example:
        >>> from castling import CastlingAttention
        >>> attention = CastlingAttention(64, num_heads=4)
        >>> with castled(attention):
        ...     is_castled(attention)
        True
        >>> is_castled(attention)
        False
    """
    attentions = _attentions_or_error(model)
    branches = [(attention, attention.aux) for attention in attentions]
    early = [found for found in attentions if isinstance(found, ConvertedAttention) and not found.castled]
    try:
        for attention in attentions:
            _switch(attention)
        yield model
    finally:
        for attention, branch in branches:
            attention.aux = branch
        for converted in early:
            converted.castled = False


def has_castling_attention(model: nn.Module) -> bool:
    """Whether anything in the model computes another attention than softmax, or did before a blend of its host's."""
    return any(isinstance(a, ConvertedAttention) or a.config.kernel != "softmax" for a in _attentions(model))


def is_castled(model: nn.Module) -> bool:
    """Whether the model has castling attention in it, and neither a branch nor a host's softmax is left."""
    attentions = _attentions(model)
    return bool(attentions) and all(
        attention.aux is None and not (isinstance(attention, ConvertedAttention) and attention.effective_blend < 1)
        for attention in attentions
    )


def _switch(attention: HeadMixer) -> None:
    """Leave linear attention alone."""
    attention.aux = None
    if isinstance(attention, ConvertedAttention):
        attention.castled = True


def _attentions(model: nn.Module) -> list[HeadMixer]:
    check_type("model", model, nn.Module, "a torch.nn.Module")
    return [module for module in model.modules() if isinstance(module, HeadMixer)]


def _attentions_or_error(model: nn.Module) -> list[HeadMixer]:
    attentions = _attentions(model)
    if not attentions:
        raise ValueError(f"no castling attention in this {type(model).__name__}: there is nothing to castle")
    return attentions
