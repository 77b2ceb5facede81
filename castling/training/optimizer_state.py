"""The state of an optimizer out of a checkpoint, which anybody may have written: tried in a step before it counts.

Every optimizer has a state of its own, which it looks at when it steps, and not before: a wrong one would end a run in
the middle of its first step, with words of the optimizer's.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from castling.sentences import one_line

# What optimizers raise for a state that is not theirs.
STATE_ERRORS = (ValueError, LookupError, TypeError, AttributeError, RuntimeError, ArithmeticError, AssertionError)


def load_optimizer(optimizer: Optimizer, saved: Mapping[str, Any], folder: Path) -> None:
    """Load the state of an optimizer, with which it can step.

    Args:
        optimizer: the optimizer; its parameters stay as they are, and have no gradients afterwards.
        saved: its state dict.
        folder: the folder of the run, for the message.

    Raises:
        ValueError: if it is the state of another optimizer, or of none.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(2))
        >>> optimizer = torch.optim.AdamW([weight])
        >>> load_optimizer(optimizer, {"state": {}, "param_groups": []}, Path("run"))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: run: the state of its optimizer is not that of AdamW, which config.yaml describes: ...
    """
    plain = getattr(optimizer, "optimizer", optimizer)  # without accelerate's wrapper, whose scaler may skip the step
    try:
        optimizer.load_state_dict(copy.deepcopy(dict(saved)))  # a copy, as the step changes it in place
        _try_step(plain)
        optimizer.load_state_dict(dict(saved))
    except STATE_ERRORS as error:
        raise ValueError(
            f"{folder}: the state of its optimizer is not that of {type(plain).__name__}, which "
            f"config.yaml describes: {one_line(error)}"
        ) from error


@torch.no_grad()
def _try_step(optimizer: Optimizer) -> None:
    """A step without gradients to speak of, after which the parameters are what they were."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    before = [parameter.clone() for parameter in parameters]
    try:
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        with torch.random.fork_rng(devices=[]):  # some optimizers draw numbers; each step of a run begins with a seed
            optimizer.step()
    finally:
        for parameter, value in zip(parameters, before, strict=True):
            parameter.copy_(value)
            parameter.grad = None
