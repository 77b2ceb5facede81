"""How to train, whatever the task: the `training` section of a recipe."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from timm.optim import list_optimizers

from castling.attention.threshold import ThresholdSchedule
from castling.config import check_choice
from castling.conversion import BlendSchedule
from castling.training.schedules import LearningRateSchedule


@dataclass(frozen=True)
class OptimizerConfig:
    """An optimizer by its name in timm.

    Args:
        name: such as `sgd`, `adamw` or `lamb`.
        weight_decay: not applied to norms, biases and what a model exempts.
        momentum: the momentum, for those that have one.
        layer_decay: factor of the learning rate per layer, counted from the head; None for one rate.
        factors: factors of the learning rate by the beginning of parameters' names, such as `{backbone: 0.1}`.
        options: whatever else the optimizer takes, such as `betas`.

    Raises:
        ValueError: for a name that timm does not know, numbers outside their range, or both factors and layer decay.
    """

    name: str = "adamw"
    weight_decay: float = 0.05
    momentum: float = 0.9
    layer_decay: float | None = None
    factors: dict[str, float] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choice("optimizer", self.name, list_optimizers())
        if self.weight_decay < 0:
            raise ValueError(f"weight_decay must be at least 0; got {self.weight_decay}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must lie in [0, 1); got {self.momentum}")
        if self.layer_decay is not None and not 0 < self.layer_decay <= 1:
            raise ValueError(f"layer_decay must lie in (0, 1], or be null for one rate; got {self.layer_decay}")
        if min(self.factors.values(), default=1.0) <= 0:
            raise ValueError(f"factors must be above 0; got {self.factors}")
        if self.factors and self.layer_decay is not None:
            raise ValueError(f"give factors or layer_decay, not both; got {self.factors} and {self.layer_decay}")


@dataclass(frozen=True)
class TrainingConfig:
    """How to train.

    Args:
        epochs: times through the data.
        batch_size: examples per optimizer step, over all processes and accumulation steps.
        accumulate: parts in which a batch is worked through, to save memory.
        optimizer: which one.
        learning_rate: its schedule.
        threshold: schedule of the mask's threshold; None leaves it at the model's own.
        blend: schedule that moves a converted model from its host's softmax (0) to castling attention (1); None leaves
            it at the host's.
        clip_norm: largest norm of the gradient; None for no limit.
        ema_decay: the decay of a moving average of the weights, which then is evaluated and kept; None for none.
        mixed_precision: `no`, `fp16` or `bf16`.
        workers: processes that read data, for each training process; None for the cores there are, up to 8.
        max_steps: stop after so many steps; None for all epochs.
        log_every: steps between two lines of the log.
        checkpoint_every: steps between two checkpoints within an epoch; there is one after every evaluation anyway.
        evaluate_every: epochs between two evaluations.
        bad_steps: non-finite steps in a row after which the run goes back to the last good checkpoint.
        max_rollbacks: how often it may go back before it stops.
        rollback_factor: what the learning rate is multiplied with each time.
        max_unreadable: share of the pictures that may be unreadable.
        trackers: names that accelerate knows, such as `tensorboard`; `log.jsonl` is always written.

    Raises:
        ValueError: for numbers outside their range.
    """

    epochs: int = 100
    batch_size: int = 256
    accumulate: int = 1
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    learning_rate: LearningRateSchedule = field(default_factory=LearningRateSchedule)
    threshold: ThresholdSchedule | None = None
    blend: BlendSchedule | None = None
    clip_norm: float | None = None
    ema_decay: float | None = None
    mixed_precision: Literal["no", "fp16", "bf16"] = "no"
    workers: int | None = None
    max_steps: int | None = None
    log_every: int = 50
    checkpoint_every: int = 1000
    evaluate_every: int = 1
    bad_steps: int = 5
    max_rollbacks: int = 3
    rollback_factor: float = 0.5
    max_unreadable: float = 0.01
    trackers: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        counts = ("epochs", "batch_size", "accumulate", "log_every", "checkpoint_every", "evaluate_every", "bad_steps")
        for name in counts:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")
        if self.max_steps is not None and self.max_steps < 1:
            raise ValueError(f"max_steps must be at least 1, or null for all epochs; got {self.max_steps}")
        for name in ("workers", "max_rollbacks"):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"{name} must be at least 0; got {getattr(self, name)}")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ValueError(f"clip_norm must be above 0, or null for no limit; got {self.clip_norm}")
        if self.ema_decay is not None and not 0 <= self.ema_decay < 1:
            raise ValueError(f"ema_decay must lie in [0, 1); got {self.ema_decay}")
        if not 0 < self.rollback_factor <= 1:
            raise ValueError(f"rollback_factor must lie in (0, 1]; got {self.rollback_factor}")
        if not 0 <= self.max_unreadable <= 1:
            raise ValueError(f"max_unreadable is a share from 0 to 1; got {self.max_unreadable}")
