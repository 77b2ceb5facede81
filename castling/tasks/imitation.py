"""What a converted model learns from the model that it was: each attention by itself, or the features of every block.

Both are relative errors, layer by layer: 0 is the original, 1 is as far off as an output of nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from castling.conversion.converted import converted_attentions
from castling.tasks.task import Batch, Losses, Task

ImitationName = Literal["attention", "features"]


class Imitation:
    """The losses of a network that learns from what it was, whatever its task: labels are not looked at.

    Args:
        task: whose network is converted, and built for training.
        what: `attention` or `features`.
    """

    def __init__(self, task: Task, what: ImitationName) -> None:
        self.task, self.learn = task, {"attention": attention_losses, "features": feature_losses}[what]

    def __call__(self, network: nn.Module, batch: Batch) -> Losses:
        """The mean of all layers' errors, and each."""
        images, original = batch["image"], self.task.original
        assert original is not None
        parts = self.learn(network, original.to(images.device), images)
        return Losses(torch.stack(list(parts.values())).mean(), parts)


def attention_losses(student: nn.Module, original: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """How far each attention is from the original's, both fed with what the original feeds it.

    No layer has to make up for another, and only attentions are trained: their projections and convolutions.

    Args:
        student: converted, at blend 1.
        original: what `original_of` gives.
        images: a batch.

    Returns:
        The relative error of each attention by its name.

    Example:
        >>> from castling.conversion import convert, original_of
        >>> student = convert(nn.TransformerEncoderLayer(32, 4, batch_first=True).eval())
        >>> losses = attention_losses(student, original_of(student), torch.randn(2, 50, 32))  # still at blend 0
        >>> {name: float(loss.detach()) for name, loss in losses.items()}
        {'self_attn': 0.0}
    """
    teachers = converted_attentions(original)
    with _calls(teachers) as calls, torch.no_grad():
        original(images)
    losses = {}
    for name, attention in converted_attentions(student).items():
        args, kwargs, wanted = calls[name]
        attention.grid_note.grid = teachers[name].grid_note.grid
        losses[name] = relative_error(_tensor(attention(*args, **kwargs)), wanted)
    return losses


def feature_losses(student: nn.Module, original: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """How far the features of each block are from the original's, all the way through the network.

    Args:
        student: converted, at any blend.
        original: what `original_of` gives.
        images: a batch.

    Returns:
        The relative error of each block by its name: the module that an attention stands in.
    """
    names = dict.fromkeys(name.rpartition(".")[0] for name in converted_attentions(original))
    with _calls({name: original.get_submodule(name) for name in names}) as wanted, torch.no_grad():
        original(images)
    with _calls({name: student.get_submodule(name) for name in names}) as found:
        student(images)
    return {name: relative_error(found[name][2], wanted[name][2]) for name in names}


def relative_error(found: Tensor, wanted: Tensor) -> Tensor:
    """Mean square of the difference over that of what is wanted.

    Example:
        >>> float(relative_error(torch.zeros(3), torch.tensor([1.0, 2.0, 3.0])))
        1.0
    """
    wanted = wanted.float()
    return F.mse_loss(found.float(), wanted) / wanted.square().mean().clamp_min(1e-12)


@contextmanager
def _calls(modules: Mapping[str, nn.Module]) -> Iterator[dict[str, tuple[Any, Any, Tensor]]]:
    """What modules are called with and give, by name, while this is entered."""
    calls: dict[str, tuple[Any, Any, Tensor]] = {}

    def note(name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        calls[name] = (args, kwargs, _tensor(output))

    hooks = [module.register_forward_hook(partial(note, name), with_kwargs=True) for name, module in modules.items()]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def _tensor(output: Any) -> Tensor:
    """The features of what a module gives; some give a grid or maps as well."""
    return output if isinstance(output, Tensor) else output[0]
