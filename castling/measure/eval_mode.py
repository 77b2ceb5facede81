"""Evaluation mode for a moment: whatever measures a network leaves it as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def eval_mode(*models: nn.Module) -> Iterator[None]:
    """Put networks into evaluation mode; on leaving, every module is in the mode it was in.

    Args:
        *models: the networks; parts of one may be in different modes.

    Example:
        >>> model = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
        >>> with eval_mode(model):
        ...     [module.training for module in model.modules()]
        [False, False, False]
        >>> [module.training for module in model.modules()]
        [True, True, False]
    """
    training = [module for model in models for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True
