"""What a run is made of: processes and precision, the optimizer, and the losses as one module that processes share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs
from timm.optim import create_optimizer_v2, param_groups_weight_decay
from torch import Tensor, nn
from torch.optim import Optimizer

from castling.attention import branches
from castling.conversion import ConvertedAttention, has_castling_attention
from castling.conversion.mask_advice import mask_advice
from castling.measure.macs import count_parameters
from castling.tasks.batches import Shard
from castling.tasks.imitation import Imitation, ImitationName
from castling.tasks.task import Batch, Losses, Moment, Task
from castling.training.config import OptimizerConfig, TrainingConfig
from castling.training.recipe import Recipe


class Learner(nn.Module):
    """A network whose forward pass is its losses.

    So several processes agree on gradients whatever parts of the network a loss calls, and in whatever order.

    Args:
        network: what is trained.
        task: whose losses they are.
        imitate: what is learned from the original instead; None for the task.
    """

    def __init__(self, network: nn.Module, task: Task, imitate: ImitationName | None) -> None:
        super().__init__()
        self.network, self.at_moment = network, task.at_moment
        self.losses = task.losses if imitate is None else Imitation(task, imitate)

    def forward(self, batch: Batch, moment: Moment) -> Losses:
        """The losses of a batch at a moment of training."""
        return self.losses(self.network, self.at_moment(batch, moment))


def make_accelerator(recipe: Recipe, folder: Path | str) -> Accelerator:
    """Processes, device, precision and trackers of a run.

    Raises:
        ValueError: for a precision that this machine lacks, or trackers that are not installed.
    """
    config = recipe.training
    if config.mixed_precision == "fp16" and not torch.accelerator.is_available():
        raise ValueError("training.mixed_precision=fp16 needs a GPU; here there are 'bf16' and 'no'")
    AcceleratorState._reset_state()  # of an earlier run in this process, which may have had another precision
    # Of a converted network, either the new convolutions or the host's position biases may have no gradient.
    some_unused = config.blend is not None or recipe.imitate is not None
    accelerator = Accelerator(
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=some_unused)],
        cpu=not torch.accelerator.is_available(),
        mixed_precision=config.mixed_precision,
        log_with=config.trackers or None,
        project_dir=str(folder),
    )
    if len(accelerator.log_with) < len(config.trackers):
        raise ValueError(f"not all of training.trackers={config.trackers} are installed here")
    return accelerator


def make_optimizer(network: nn.Module, config: TrainingConfig) -> Optimizer:
    """The optimizer of a recipe; timm's.

    Raises:
        ValueError: if no parameter has a name that a factor is for.
    """
    parameters = scaled_groups(network, config.optimizer) if config.optimizer.factors else network
    optimizer: Optimizer = create_optimizer_v2(
        parameters,
        config.optimizer.name,
        lr=config.learning_rate.peak,
        weight_decay=config.optimizer.weight_decay,
        momentum=config.optimizer.momentum,
        layer_decay=config.optimizer.layer_decay,
        **config.optimizer.options,
    )
    return optimizer


def scaled_groups(network: nn.Module, config: OptimizerConfig) -> list[dict[str, Any]]:
    """Groups of parameters by decay and by the factor of their learning rate.

    Raises:
        ValueError: if no parameter has a name that a factor is for.

    Example:
        >>> network = nn.ModuleDict({"backbone": nn.Linear(2, 2), "head": nn.Linear(2, 2)})
        >>> groups = scaled_groups(network, OptimizerConfig(factors={"backbone": 0.1}))
        >>> sorted((group["lr_scale"], group["weight_decay"]) for group in groups)
        [(0.1, 0.0), (0.1, 0.05), (1.0, 0.0), (1.0, 0.05)]
    """
    scales = {name: 1.0 for name, _ in network.named_parameters()}
    for prefix, factor in config.factors.items():
        meant = [name for name in scales if name.startswith(prefix)]
        if not meant:
            raise ValueError(
                f"optimizer.factors: no parameter's name begins with {prefix!r}, as {next(iter(scales))!r}"
            )
        scales |= dict.fromkeys(meant, factor)
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    exempt = cast(Any, network).no_weight_decay() if hasattr(network, "no_weight_decay") else ()
    groups = []
    for group in param_groups_weight_decay(network, config.weight_decay, no_weight_decay_list=exempt):
        by_scale: dict[float, list[nn.Parameter]] = {}
        for parameter in group["params"]:
            by_scale.setdefault(scales[names[id(parameter)]], []).append(parameter)
        groups += [{**group, "params": found, "lr_scale": scale} for scale, found in by_scale.items()]
    return groups


def num_workers(asked: int | None, shard: Shard) -> int:
    """Reading processes: as asked for, or the cores there are for each process, up to 8."""
    return min(8, (os.cpu_count() or 1) // shard.num_shards) if asked is None else asked


def describe_network(network: nn.Module) -> dict[str, Any]:
    """What is to be known of a network without building it: its attention, and its size.

    Example:
        >>> from castling import CastlingAttention
        >>> describe_network(CastlingAttention(64, 4))["attention"]
        'castling'
    """
    converted = any(isinstance(module, ConvertedAttention) for module in network.modules())
    castling = "converted" if converted else "castling"
    return {
        "attention": castling if has_castling_attention(network) else "softmax",
        "branches": len(branches(network)),
        "parameters": count_parameters(network),
    }


def advice(network: nn.Module, inputs: Sequence[Tensor], last_threshold: float | None) -> list[str]:
    """Let a network see what it will be trained on, and say where masks cannot become empty.

    Raises:
        ValueError: if it does not take pictures of that size.
    """
    try:
        return mask_advice(network, inputs, last_threshold)
    except AssertionError as error:  # which is how timm refuses them
        raise ValueError(
            f"the network does not take what it is to be trained on: {error} Its own size is model.options.img_size, "
            "that of pictures data.image_size; timm's ViTs take several with model.options.dynamic_img_size=true"
        ) from error
