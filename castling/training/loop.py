"""The training loop. It knows no task: all that it asks for is in the task interface.

Every step seeds the generators anew from the recipe's seed and the step's number, and the order of the data is a
function of both, so that the state of a run is its tensors and its step.
"""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import send_to_device
from timm.utils import ModelEmaV3
from torch import nn

from castling.measure.occupancy import Occupancy, last_occupancy
from castling.tasks.batches import Shard, seed_everything
from castling.tasks.task import Batch, Moment
from castling.training.evaluation import OnDevice, evaluate
from castling.training.learner import (
    Learner,
    advice,
    describe_network,
    make_accelerator,
    make_optimizer,
    num_workers,
)
from castling.training.lock import RunLock
from castling.training.processes import agree, check_shared, explained, from_first, share_buffers, together
from castling.training.recipe import Recipe
from castling.training.records import EvalRecord, Record, StepRecord, Watch, flat_numbers
from castling.training.run_folder import RunFolder
from castling.training.schedules import set_blend_to, set_learning_rate, set_threshold
from castling.training.signals import Interrupted, StopRequest
from castling.training.state import NotFinite, Progress, RunState

logger = logging.getLogger(__name__)


class TrainingFailed(RuntimeError):
    """Training cannot go on: losses, gradients or weights stay non-finite."""


def train(
    recipe: Recipe, folder: Path | str, resume: bool = False, watch: Watch = lambda record: None
) -> dict[str, Any]:
    """Train a recipe, in one process or in as many as torchrun started.

    Args:
        recipe: what to train and how.
        folder: the folder of the run; made where needed.
        resume: whether to go on with the run that is there, from its last good checkpoint.
        watch: a function that is told of every step and every evaluation.

    Returns:
        The summary, as in `summary.json`.

    Raises:
        ValueError: for a recipe that cannot be trained, a folder with a run in it (unless resumed), one that another
            process writes to, or too many unreadable pictures.
        OSError: if the folder cannot be written to.
        ChildProcessError: if a reading process was killed.
        ConnectionError: if another process of the run has ended.
        Interrupted: after SIGTERM or Ctrl-C, with the state saved.
        TrainingFailed: if numbers stay non-finite after all returns to a checkpoint.
    """
    with StopRequest() as stop, RunLock(folder) as lock:
        trainer = Trainer(recipe, folder, resume, watch, lock)
        try:
            return trainer.run(stop)
        except RuntimeError as error:
            reason = explained(error, folder)
            if reason is None:
                raise
            raise reason from error
        finally:
            for tracker in trainer.accelerator.trackers:  # end_training would end the processes' group too
                tracker.finish()


class Trainer:
    """A run in this process, and the moves it can make.

    Args:
        recipe: what to train and how.
        folder: the folder of the run.
        resume: whether to go on with what is there.
        watch: a function that is told of every step and every evaluation.
        lock: the lock of the folder, which the first process takes.
    """

    def __init__(self, recipe: Recipe, folder: Path | str, resume: bool, watch: Watch, lock: RunLock) -> None:
        self.recipe, self.config, self.lock = recipe, recipe.training, lock
        self.accelerator = make_accelerator(recipe, folder)
        self.device = self.accelerator.device
        self.watch = watch if self.accelerator.is_main_process else lambda record: None
        self.shard = Shard(self.accelerator.process_index, self.accelerator.num_processes)
        self.folder = RunFolder(folder, self.accelerator.is_main_process)
        network = together(self._build)
        agree("pictures to train on and to evaluate", self.num_examples)
        if not resume:
            from_first(self.task.check_data)
        optimizer = make_optimizer(network, self.config)
        together(partial(self._begin, network, resume))
        check_shared(self.folder.path, lock)
        if self.config.trackers:
            self.accelerator.init_trackers("castling")
        ema = None if self.config.ema_decay is None else ModelEmaV3(network, self.config.ema_decay, use_warmup=True)
        learner = Learner(network, self.task, recipe.imitate)
        self.learner, self.optimizer = self.accelerator.prepare(learner, optimizer)
        self.state = RunState(network, self.optimizer, ema, self.accelerator.scaler, Progress(), self.num_examples)
        if resume:
            self._restore("resumed")

    def _build(self) -> nn.Module:
        """The task, its network and its loaders."""
        self.task = self.recipe.make_task()
        seed_everything(self.recipe.seed)
        network = self.task.build_network(training=True)
        self._make_loaders()
        return network.to(self.device)

    def _make_loaders(self) -> None:
        """Both loaders, and how many steps they make."""
        config, workers = self.config, num_workers(self.config.workers, self.shard)
        size = config.batch_size
        self.train_loader = self.task.loader("train", size, self.recipe.seed, self.shard, config.accumulate, workers)
        self.val_loader = self.task.loader("val", size, shard=self.shard, workers=workers)
        for split, loader in (("train", self.train_loader), ("val", self.val_loader)):
            # Nothing here points back to this object: left to the garbage collector, reading processes end late.
            loader.on_unreadable = partial(
                self.folder.quarantine, split=split, limit=config.max_unreadable, total=loader.num_examples
            )
        self.num_examples = [self.train_loader.num_examples, self.val_loader.num_examples]
        self.steps_per_epoch = self.train_loader.num_batches
        self.num_steps = config.epochs * self.steps_per_epoch
        self.last_step = min(self.num_steps, config.max_steps or self.num_steps)

    def _begin(self, network: nn.Module, resume: bool) -> None:
        """Make the run folder, once a first pass has shown that the pictures fit the network."""
        for share in (0.0, 1.0):
            set_threshold(network, self.config.threshold, share)  # which may be none for this network
        last_threshold = None if self.config.threshold is None else self.config.threshold(1.0)
        found = [line for given in self.task.training_inputs() for line in advice(network, given, last_threshold)]
        if self.folder.writes:
            self.lock.take()
        if not resume:
            self.folder.create(self.recipe, self.task.facts, describe_network(network))
        for sentence in found:
            self.folder.event(sentence)

    def run(self, stop: StopRequest) -> dict[str, Any]:
        """Train to the end; returns the summary."""
        started = time.monotonic()
        if self.state.progress.evaluated == self.last_step and self.folder.is_finished():
            return self.folder.summary()
        batches: Iterator[Batch] | None = None
        if not self.state.progress.step:
            self._save()  # something to go back to, and a full or read-only disk is noticed now
        while self.state.progress.evaluated != self.last_step:
            step = self.state.progress.step
            try:
                if self._evaluation_is_due():
                    self._evaluate()
                    continue
                if batches is None or step % self.steps_per_epoch == 0:
                    self.train_loader.seek(*divmod(step, self.steps_per_epoch))
                    batches = iter(self.train_loader)
                self._step(list(itertools.islice(batches, self.config.accumulate)))
                if self._asked_to_stop(stop):
                    self._save()
                    raise Interrupted(self.folder.path, step + 1, stop.signum)
                if (step + 1) % self.config.checkpoint_every == 0 and not self._evaluation_is_due():
                    self._save()
            except NotFinite as trouble:
                self._go_back(str(trouble))
                batches = None
        return self._summarise(time.monotonic() - started)

    def _step(self, micro_batches: list[Batch]) -> None:
        """One optimizer step; a non-finite loss or gradient leaves all weights as they were.

        Raises:
            NotFinite: after too many of these in a row.
        """
        config, state, progress = self.config, self.state, self.state.progress
        epoch, share = progress.step / self.steps_per_epoch, progress.step / self.num_steps
        rate = config.learning_rate(epoch, config.epochs) * config.rollback_factor**progress.rollbacks
        set_learning_rate(self.optimizer, rate)
        threshold = set_threshold(state.model, config.threshold, share)
        blend = set_blend_to(state.model, config.blend, share)
        seed_everything(self.recipe.seed, progress.step, self.shard.rank)
        buffers = [buffer.clone() for buffer in state.model.buffers()]  # running statistics, which a NaN poisons
        loss, parts = self._backward(micro_batches)
        norm = self._gradient_norm()
        overflowed = state.scaler is not None and not math.isfinite(norm)
        if math.isfinite(loss) and (math.isfinite(norm) or overflowed):
            self.optimizer.step()  # a gradient that overflowed in fp16 is skipped in there, and the scale lowered
            if state.ema is not None and not overflowed:
                state.ema.update(state.model, progress.step + 1)
            progress.loss_sum, progress.loss_count = progress.loss_sum + loss, progress.loss_count + 1
            progress.bad_in_a_row = 0
        else:
            for buffer, before in zip(state.model.buffers(), buffers, strict=True):
                buffer.copy_(before)
            progress.skipped, progress.bad_in_a_row = progress.skipped + 1, progress.bad_in_a_row + 1
        self.optimizer.zero_grad()
        record = StepRecord(
            step=progress.step,
            num_steps=self.last_step,
            epoch=epoch,
            loss=progress.loss_sum / progress.loss_count if progress.loss_count else None,
            learning_rate=rate,
            threshold=threshold,
            blend=blend,
            gradient_norm=norm if math.isfinite(norm) else None,
            skipped=progress.skipped,
        )
        if progress.step % config.log_every == 0:
            numbers = {name: float(part) for name, part in parts.items()}
            occupancy = self._mean_over_processes(last_occupancy(state.model))
            record = replace(record, parts=numbers, occupancy=occupancy)
            self._log(record)
            progress.loss_sum, progress.loss_count = 0.0, 0
        progress.step += 1
        self.watch(record)
        if progress.bad_in_a_row >= config.bad_steps:
            raise NotFinite(f"{config.bad_steps} steps in a row had a non-finite loss or gradient")

    def _backward(self, micro_batches: list[Batch]) -> tuple[float, dict[str, torch.Tensor]]:
        """Add up all gradients; returns the mean loss over parts and processes, and what the last was made of."""
        self.learner.train()
        moment = Moment(self.state.progress.step, self.num_steps)
        total = torch.zeros((), device=self.device)
        parts: dict[str, torch.Tensor] = {}
        for number, batch in enumerate(micro_batches, start=1):
            with self.accelerator.no_sync(self.learner) if number < len(micro_batches) else nullcontext():
                with self.accelerator.autocast():
                    losses = self.learner(send_to_device(batch, self.device), moment)
                self.accelerator.backward(losses.total / len(micro_batches))
            total += losses.total.detach() / len(micro_batches)
            parts = {name: value.detach() for name, value in losses.parts.items()}
        return float(self.accelerator.reduce(total, "mean")), parts

    def _gradient_norm(self) -> float:
        """The norm of the whole gradient, which is clipped where the recipe says so."""
        self.accelerator.unscale_gradients()
        parameters = [parameter for parameter in self.state.model.parameters() if parameter.grad is not None]
        norm = nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
        if self.config.clip_norm is not None and torch.isfinite(norm):
            nn.utils.clip_grads_with_norm_(parameters, self.config.clip_norm, norm)
        return float(norm)

    def _evaluation_is_due(self) -> bool:
        step = self.state.progress.step
        epoch_ends = step > 0 and step % (self.steps_per_epoch * self.config.evaluate_every) == 0
        return (step == self.last_step or epoch_ends) and self.state.progress.evaluated != step

    def _evaluate(self) -> None:
        """Evaluate the weights that count, log it, and keep them in a checkpoint with their score."""
        share_buffers(self.state.model)
        share_buffers(self.state.kept_model)
        self.state.check_finite()
        progress, network = self.state.progress, self.state.kept_model
        set_threshold(network, self.config.threshold, progress.step / self.num_steps)
        set_blend_to(network, self.config.blend, progress.step / self.num_steps)
        with self.accelerator.autocast():
            found = evaluate(self.task, network, OnDevice(self.val_loader, self.device), drop_branches=True)
        if not found.finite:
            raise NotFinite("outputs for the validation pictures are not finite")
        occupancy = self._mean_over_processes(found.occupancy)
        epoch = progress.step / self.steps_per_epoch
        record = EvalRecord(progress.step, epoch, found.model, found.castled, occupancy)
        progress.evaluated, progress.metrics = progress.step, record.to_summary()
        self._log(record)
        self.watch(record)
        self._save(score=record.deciding.rank)

    def _log(self, record: Record) -> None:
        self.lock.check()
        self.folder.log(record)
        if self.config.trackers:
            self.accelerator.log(flat_numbers(record.to_json()), step=record.step)

    def _save(self, score: float | None = None) -> None:
        self.lock.check()
        self.state.save(self.folder, self.state.progress.step / self.num_steps, score)
        self.accelerator.wait_for_everyone()

    def _restore(self, why: str) -> None:
        together(partial(self.state.restore, self.folder))
        step = self.state.progress.step
        agree("steps of the last good checkpoint", step)
        if step > self.last_step:  # which would never be reached
            raise ValueError(
                f"{self.folder.path} is at step {step}, and config.yaml ends at step {self.last_step}: put its "
                "training.epochs and training.max_steps back, or begin another run"
            )
        self.folder.event(why, step=step)

    def _go_back(self, trouble: str) -> None:
        """Return to the last good checkpoint with a lower learning rate, a bounded number of times."""
        config, before = self.config, self.state.progress
        if before.rollbacks == config.max_rollbacks:
            raise TrainingFailed(
                f"{trouble}, at step {before.step}, after {config.max_rollbacks} returns to a good checkpoint already. "
                "The last good checkpoint is kept. Try a lower training.learning_rate.peak, training.clip_norm, or "
                "training.mixed_precision=no"
            )
        logger.warning("%s, at step %d", trouble, before.step)
        self._restore("went back with a lower learning rate")
        self.state.progress.rollbacks, self.state.progress.skipped = before.rollbacks + 1, before.skipped

    def _asked_to_stop(self, stop: StopRequest) -> bool:
        """Whether any process got a signal; all of them leave together."""
        if self.shard.num_shards == 1:
            return stop.signum > 0
        return float(self.accelerator.reduce(torch.tensor(float(stop.signum > 0), device=self.device), "sum")) > 0

    def _mean_over_processes(self, occupancy: Occupancy) -> Occupancy:
        if self.shard.num_shards == 1:
            return occupancy
        means = {name: torch.tensor(heads, device=self.device) for name, heads in occupancy.items()}
        return {name: self.accelerator.reduce(heads, "mean").tolist() for name, heads in means.items()}

    def _summarise(self, seconds: float) -> dict[str, Any]:
        progress = self.state.progress
        summary = {
            "status": "finished",
            "epochs": progress.step / self.steps_per_epoch,
            "steps": progress.step,
            "seconds": round(seconds, 1),
            **(progress.metrics or {}),
            "skipped_steps": progress.skipped,
            "rollbacks": progress.rollbacks,
            "quarantined": len(self.folder.quarantined()),
            "processes": self.shard.num_shards,
        }
        self.folder.write_json("summary.json", summary)
        return summary
