"""Losses of classification: cross-entropy with smoothed or mixed labels, and DeiT's hard and soft distillation."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from castling.tasks.classification.distillation import DistillationConfig
from castling.tasks.task import Losses


def label_loss(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    """Mean cross-entropy.

    Args:
        logits: `(B, classes)`.
        targets: classes `(B,)`, or mixed ones as probabilities `(B, classes)`.
        smoothing: share of the probability that goes to all classes alike; mixed targets carry theirs already.
    """
    return F.cross_entropy(logits.float(), targets, label_smoothing=smoothing if targets.ndim == 1 else 0.0)


def teacher_loss(logits: Tensor, teacher_logits: Tensor, config: DistillationConfig) -> Tensor:
    """Hard: cross-entropy with the teacher's choice. Soft: divergence of both at a temperature, scaled by its square.

    Args:
        logits: the logits of the student, `(B, classes)`.
        teacher_logits: `(B, classes)`.
        config: which of the two, and the temperature.
    """
    if config.kind == "hard":
        return F.cross_entropy(logits.float(), teacher_logits.argmax(-1))
    student = F.log_softmax(logits.float() / config.temperature, dim=-1)
    teacher = F.log_softmax(teacher_logits.float() / config.temperature, dim=-1)
    return F.kl_div(student, teacher, reduction="batchmean", log_target=True) * config.temperature**2


def total_loss(
    output: Tensor | tuple[Tensor, Tensor],
    targets: Tensor,
    smoothing: float = 0.0,
    teacher_logits: Tensor | None = None,
    distillation: DistillationConfig | None = None,
) -> Losses:
    """The loss of a batch and its parts.

    Args:
        output: logits, or those of the class head and of the distillation head.
        targets: the targets, as for `label_loss`.
        smoothing: the smoothing, as for `label_loss`.
        teacher_logits: the logits of the teacher, where there is one.
        distillation: how to follow it.

    Returns:
        The loss; its parts are `label_loss` and `teacher_loss` where there is a teacher.
    """
    logits, distilled = output if isinstance(output, tuple) else (output, output)
    by_label = label_loss(logits, targets, smoothing)
    if teacher_logits is None or distillation is None:
        return Losses(by_label, {})
    by_teacher = teacher_loss(distilled, teacher_logits, distillation)
    loss = (1 - distillation.alpha) * by_label + distillation.alpha * by_teacher
    return Losses(loss, {"label_loss": by_label, "teacher_loss": by_teacher})
