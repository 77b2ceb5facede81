"""The state of a run: its tensors and a few numbers. Whoever restores it goes on as if nothing had happened."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from timm.utils import ModelEmaV3
from torch import nn
from torch.optim import Optimizer

from castling.plain_values import from_plain
from castling.training.checkpoint import Checkpoint, load_last, load_weights, save_checkpoint
from castling.training.optimizer_state import load_optimizer
from castling.training.run_folder import RunFolder


class NotFinite(Exception):
    """Losses, gradients or weights are not finite, and the run has to go back."""


@dataclass
class Progress:
    """Where a run is, beside its tensors.

    Args:
        step: optimizer steps, skipped ones included.
        evaluated: the step of the last evaluation.
        skipped: steps skipped for a non-finite loss or gradient.
        bad_in_a_row: the number of these at the very end.
        rollbacks: times the run went back to a checkpoint.
        loss_sum: the sum of the losses of the steps since the last line of the log.
        loss_count: how many these are.
        metrics: those of the last evaluation, as a summary has them.
    """

    step: int = 0
    evaluated: int = -1
    skipped: int = 0
    bad_in_a_row: int = 0
    rollbacks: int = 0
    loss_sum: float = 0.0
    loss_count: int = 0
    metrics: dict[str, Any] | None = None


@dataclass
class Scaler:
    """What torch's scaler of fp16 losses says of itself, by torch's names."""

    scale: float
    growth_factor: float
    backoff_factor: float
    growth_interval: int
    _growth_tracker: int


@dataclass
class RunState:
    """What changes during a run.

    Args:
        model: the network, without wrappers.
        optimizer: its optimizer.
        ema: moving average of the weights; None for none.
        scaler: the scaler of fp16 losses; None for none.
        progress: the numbers.
        num_examples: pictures to train on and to evaluate, on which the order of all others depends.
    """

    model: nn.Module
    optimizer: Optimizer
    ema: ModelEmaV3 | None
    scaler: Any
    progress: Progress
    num_examples: list[int] = field(default_factory=list)

    @property
    def kept_model(self) -> nn.Module:
        """The weights that count: the moving average where there is one."""
        kept: nn.Module = self.model if self.ema is None else self.ema.module
        return kept

    def check_finite(self) -> None:
        """Refuse poisoned weights, which are never evaluated nor saved.

        Raises:
            NotFinite: names the first.
        """
        for name, value in [*self.model.state_dict().items(), *self.kept_model.state_dict().items()]:
            if not torch.isfinite(value).all():
                raise NotFinite(f"{name} is not finite")

    def save(self, folder: RunFolder, share: float, score: float | None = None) -> None:
        """Write a checkpoint, in the process that writes.

        Args:
            folder: the folder of the run.
            share: the share of training that is done.
            score: the score of the kept weights, where they were evaluated.

        Raises:
            NotFinite: for weights that are not.
            OSError: if it cannot be written.
        """
        self.check_finite()
        if not folder.writes:
            return
        weights = {"model": self.model.state_dict()}
        if self.ema is not None:
            weights["ema"] = self.ema.module.state_dict()
        state = {"progress": asdict(self.progress), "share": share, "score": score, "log_size": folder.log_size()}
        state["num_examples"] = self.num_examples
        if self.scaler is not None:
            state["scaler"] = self.scaler.state_dict()
        checkpoint = Checkpoint(self.progress.step, weights, self.optimizer.state_dict(), state)
        save_checkpoint(folder.checkpoints, checkpoint)

    def restore(self, folder: RunFolder) -> None:
        """Take up the last good checkpoint and cut the log back to it; without one, the run begins anew.

        Raises:
            ValueError: if there are checkpoints, but no good one, if it is of another network, or if the data has
                another number of pictures than then.
        """
        checkpoint = load_last(folder.checkpoints)
        if checkpoint is None:
            folder.begin_anew()
            return
        before = list(checkpoint.state.get("num_examples", self.num_examples))
        if before != self.num_examples:
            raise ValueError(
                f"{folder.path} was trained on {before[0]} pictures and evaluated on {before[1]}; now there are "
                f"{self.num_examples[0]} and {self.num_examples[1]}, which would come in another order: put the data "
                "back as it was, or begin another run"
            )
        load_weights(self.model, checkpoint.weights["model"], folder.path)
        if self.ema is not None:
            if "ema" not in checkpoint.weights:
                raise ValueError(f"{folder.path}: its checkpoint lacks the moving average that config.yaml describes")
            load_weights(self.ema.module, checkpoint.weights["ema"], folder.path)
        load_optimizer(self.optimizer, checkpoint.optimizer, folder.path)
        if self.scaler is not None and "scaler" in checkpoint.state:
            where = f"{folder.path}: the scaler of its checkpoint"
            self.scaler.load_state_dict(asdict(from_plain(Scaler, checkpoint.state["scaler"], where)))
        where = f"{folder.path}: the progress of its checkpoint"
        self.progress = from_plain(Progress, checkpoint.noted("progress", folder.path), where)
        if not 0 <= self.progress.step == checkpoint.step:
            raise ValueError(f"{where} is at step {self.progress.step}, and the checkpoint at step {checkpoint.step}")
        folder.cut_log(checkpoint.noted("log_size", folder.path))
