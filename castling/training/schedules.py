"""What moves during training: learning rate, threshold of the mask, blend of a conversion; functions of progress alone.

Being functions of the step, they need no state in a checkpoint. `exponential` is the paper's classification recipe
(Sec. 4.1), `cosine` that of DeiT, `polynomial` that of Mask2Former.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from torch import nn
from torch.optim import Optimizer

from castling.attention import branches
from castling.attention.threshold import ThresholdSchedule
from castling.config import check_choice
from castling.conversion import BlendSchedule, ConvertedAttention

RateName = Literal["constant", "cosine", "exponential", "polynomial"]
POWER = 0.9  # of the polynomial, as semantic segmentation has it since DeepLab


@dataclass(frozen=True)
class LearningRateSchedule:
    """A learning rate that warms up linearly to its peak and then falls.

    Args:
        kind: after the warm-up `constant` stays, `cosine` falls to `final` over the epochs left, `exponential` is
            multiplied by `decay` after each epoch, `polynomial` falls to `final` as the epochs left, to the power 0.9.
        peak: learning rate after the warm-up.
        warmup_epochs: epochs of the warm-up; it rises with every step.
        warmup_from: learning rate at the very start.
        final: the rate at which `cosine` and `polynomial` end.
        decay: factor per epoch of `exponential`.

    Raises:
        ValueError: for an unknown kind or numbers outside their range.

    Example:
        >>> paper = LearningRateSchedule("exponential", peak=2.0, warmup_epochs=11, warmup_from=0.01, decay=0.9875)
        >>> [round(paper(epoch, 1000), 4) for epoch in (0, 5.5, 11, 12.5)]
        [0.01, 1.005, 2.0, 1.975]
    """

    kind: RateName = "cosine"
    peak: float = 1e-3
    warmup_epochs: float = 0.0
    warmup_from: float = 0.0
    final: float = 0.0
    decay: float = 0.9875

    def __post_init__(self) -> None:
        check_choice("learning-rate schedule", self.kind, get_args(RateName))
        if not self.peak > 0:
            raise ValueError(f"peak must be above 0; got {self.peak}")
        if min(self.warmup_epochs, self.warmup_from, self.final) < 0:
            raise ValueError("warmup_epochs, warmup_from and final must be at least 0")
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay must lie in (0, 1]; got {self.decay}")

    def __call__(self, epoch: float, epochs: float) -> float:
        """The learning rate after `epoch` of `epochs` epochs; both may be fractions."""
        if epoch < self.warmup_epochs:
            return self.warmup_from + (self.peak - self.warmup_from) * epoch / self.warmup_epochs
        since = epoch - self.warmup_epochs
        if self.kind == "exponential":
            return self.peak * self.decay ** math.floor(since + 1e-9)  # the sum of many steps is an epoch
        share = min(since / max(epochs - self.warmup_epochs, 1e-9), 1.0)
        if self.kind == "cosine":
            return self.final + (self.peak - self.final) * (1 + math.cos(math.pi * share)) / 2
        if self.kind == "polynomial":
            return self.final + (self.peak - self.final) * (1 - share) ** POWER
        return self.peak


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Give every parameter group its rate; groups with a scale of their own (layer decay) keep it."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("lr_scale", 1.0)


def set_threshold(model: nn.Module, schedule: ThresholdSchedule | None, progress: float) -> float | None:
    """Move the threshold of every branch to where the schedule has it; without a schedule they stay.

    Returns:
        The threshold; None for a model without branches.
    """
    threshold = None
    for branch in branches(model).values():
        if schedule is not None:
            branch.set_threshold(schedule(progress))
        threshold = branch.threshold
    return threshold


def set_blend_to(model: nn.Module, schedule: BlendSchedule | None, progress: float) -> float | None:
    """Move the blend of every converted attention to where the schedule has it; without a schedule they stay.

    Returns:
        The blend; None for a model without converted attention.
    """
    blend = None
    for attention in model.modules():
        if isinstance(attention, ConvertedAttention):
            attention.blend = attention.blend if schedule is None else schedule(progress)
            blend = attention.blend
    return blend
