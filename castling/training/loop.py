"""The training loop. It knows no task: a task builds the model and the loaders, gives losses, and evaluates.

Every step seeds the generators anew from the recipe's seed and the step's number, and the order of the data is a
function of both, so that the state of a run is its tensors and its step.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs, send_to_device
from timm.optim import create_optimizer_v2
from timm.utils import ModelEmaV3
from torch import nn

from castling.conversion.mask_advice import mask_advice
from castling.measure.occupancy import last_occupancy
from castling.tasks.batches import Shard, seed_everything
from castling.training.evaluation import OnDevice, evaluate_both
from castling.training.recipe import Recipe
from castling.training.run_folder import RunFolder
from castling.training.schedules import set_blend_to, set_learning_rate, set_threshold
from castling.training.signals import Interrupted, StopRequest
from castling.training.state import NotFinite, Progress, RunState

logger = logging.getLogger(__name__)
Watch = Callable[[dict[str, Any]], None]


class TrainingFailed(RuntimeError):
    """Training cannot go on: losses, gradients or weights stay non-finite."""


def train(recipe: Recipe, folder: Path | str, resume: bool = False, watch: Watch = lambda line: None) -> dict[str, Any]:
    """Train a recipe, in one process or in as many as torchrun started.

    Args:
        recipe: what to train and how.
        folder: of the run; made where needed.
        resume: go on with the run that is there, from its last good checkpoint.
        watch: is told of every step (`kind` is `tick`), and gets every line of the log.

    Returns:
        The summary, as in `summary.json`.

    Raises:
        ValueError: for a recipe that cannot be trained, a folder with a run in it (unless resumed), or too many
            unreadable pictures.
        OSError: if the folder cannot be written to.
        Interrupted: after SIGTERM or Ctrl-C, with the state saved.
        TrainingFailed: if numbers stay non-finite after all returns to a checkpoint.
    """
    with StopRequest() as stop:
        trainer = Trainer(recipe, folder, resume, watch)
        try:
            return trainer.run(stop)
        finally:
            trainer.accelerator.end_training()


class Trainer:
    """A run in this process, and the moves it can make.

    Args:
        recipe: what to train and how.
        folder: of the run.
        resume: whether to go on with what is there.
        watch: is told of every step and every line of the log.
    """

    def __init__(self, recipe: Recipe, folder: Path | str, resume: bool, watch: Watch) -> None:
        self.recipe, self.config = recipe, recipe.training
        config = recipe.training
        if config.mixed_precision == "fp16" and not torch.accelerator.is_available():
            raise ValueError("training.mixed_precision=fp16 needs a GPU; here there are 'bf16' and 'no'")
        AcceleratorState._reset_state()  # of an earlier run in this process, which may have had another precision
        # Of a converted network, either the new convolutions or the host's position biases may have no gradient.
        parts = DistributedDataParallelKwargs(find_unused_parameters=config.blend is not None)
        self.accelerator = Accelerator(
            kwargs_handlers=[parts],
            cpu=not torch.accelerator.is_available(),
            mixed_precision=config.mixed_precision,
            log_with=config.trackers or None,
            project_dir=str(folder),
        )
        if len(self.accelerator.log_with) < len(config.trackers):
            raise ValueError(f"not all of training.trackers={config.trackers} are installed here")
        self.device = self.accelerator.device
        self.watch = watch if self.accelerator.is_main_process else lambda line: None
        self.shard = Shard(self.accelerator.process_index, self.accelerator.num_processes)
        self.folder = RunFolder(folder, self.accelerator.is_main_process)
        self.task = recipe.make_task()
        seed_everything(recipe.seed)
        model = self.task.build_model()
        share = {"batch_size": config.batch_size, "shard": self.shard, "workers": self._workers()}
        self.train_loader = self.task.build_loader("train", seed=recipe.seed, parts=config.accumulate, **share)
        self.val_loader = self.task.build_loader("val", **share)
        self.steps_per_epoch = self.train_loader.batch_sampler.num_batches
        self.num_steps = config.epochs * self.steps_per_epoch
        self.last_step = min(self.num_steps, config.max_steps or self.num_steps)
        model.to(self.device)
        optimizer = create_optimizer_v2(
            model,
            config.optimizer.name,
            lr=config.learning_rate.peak,
            weight_decay=config.optimizer.weight_decay,
            momentum=config.optimizer.momentum,
            layer_decay=config.optimizer.layer_decay,
            **config.optimizer.options,
        )
        last_threshold = None if config.threshold is None else config.threshold(1.0)
        advice = mask_advice(model, self.task.example(), last_threshold)  # and the pictures fit the network
        if not resume:
            self.folder.create(recipe, self.task.keepsakes())
        self.accelerator.wait_for_everyone()
        if config.trackers:
            self.accelerator.init_trackers("castling")
        for sentence in advice:
            self.folder.event(sentence)
        ema = None if config.ema_decay is None else ModelEmaV3(model, config.ema_decay, use_warmup=True)
        self.parts: dict[str, torch.Tensor] = {}  # of the last loss of this process
        self.wrapped_model, self.optimizer = self.accelerator.prepare(model, optimizer)
        self.state = RunState(model, self.optimizer, ema, self.accelerator.scaler, Progress())
        if resume:
            self._restore("resumed")

    def run(self, stop: StopRequest) -> dict[str, Any]:
        """Train to the end; returns the summary."""
        started = time.monotonic()
        if self.state.progress.evaluated == self.last_step:
            return self.folder.summary()
        batches: Iterator[Any] | None = None
        if not self.state.progress.step:
            self._save()  # something to go back to, and a full or read-only disk is noticed now
        while self.state.progress.evaluated != self.last_step:
            step = self.state.progress.step
            try:
                if self._evaluation_is_due():
                    self._evaluate()
                    continue
                if batches is None or step % self.steps_per_epoch == 0:
                    self.train_loader.batch_sampler.seek(*divmod(step, self.steps_per_epoch))
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

    def _step(self, parts: list[dict[str, Any]]) -> None:
        """One optimizer step on the parts of a batch; a non-finite loss or gradient leaves all weights as they were.

        Raises:
            NotFinite: after too many of these in a row.
        """
        config, state, progress = self.config, self.state, self.state.progress
        epoch = progress.step / self.steps_per_epoch
        rate = config.learning_rate(epoch, config.epochs) * config.rollback_factor**progress.rollbacks
        set_learning_rate(self.optimizer, rate)
        threshold = set_threshold(state.model, config.threshold, progress.step / self.num_steps)
        blend = set_blend_to(state.model, config.blend, progress.step / self.num_steps)
        seed_everything(self.recipe.seed, progress.step, self.shard.rank)
        buffers = [buffer.clone() for buffer in state.model.buffers()]  # running statistics, which a NaN poisons
        loss = self._backward(parts)
        norm = self._gradient_norm()
        overflowed = state.scaler is not None and not math.isfinite(norm)
        finite = math.isfinite(loss) and (math.isfinite(norm) or overflowed)
        if finite:
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
        line = {
            "kind": "step",
            "step": progress.step,
            "epoch": epoch,
            "loss": progress.loss_sum / progress.loss_count if progress.loss_count else None,
            "learning_rate": rate,
            "threshold": threshold,
            **({} if blend is None else {"blend": blend}),
            "gradient_norm": norm if math.isfinite(norm) else None,
            "skipped": progress.skipped,
        }
        if progress.step % config.log_every == 0:
            by_part = {"parts": {name: float(part) for name, part in self.parts.items()}} if self.parts else {}
            self._log({**line, **by_part, "occupancy": self._mean_over_processes(last_occupancy(state.model))})
            progress.loss_sum, progress.loss_count = 0.0, 0
        progress.step += 1
        self.watch({**line, "kind": "tick", "step": progress.step, "steps": self.last_step})
        if progress.bad_in_a_row >= config.bad_steps:
            raise NotFinite(f"{config.bad_steps} steps in a row had a non-finite loss or gradient")

    def _backward(self, parts: list[dict[str, Any]]) -> float:
        """Add up the gradients of all parts; returns the mean loss over parts and processes."""
        self.wrapped_model.train()
        total = torch.zeros((), device=self.device)
        for number, part in enumerate(parts, start=1):
            self._quarantine(part.pop("unreadable", []), "train")
            with self.accelerator.no_sync(self.wrapped_model) if number < len(parts) else nullcontext():
                with self.accelerator.autocast():
                    losses = self.task.losses(self.wrapped_model, send_to_device(part, self.device))
                loss = losses.pop("loss")
                self.parts = {name: value.detach() for name, value in losses.items()}
                self.accelerator.backward(loss / len(parts))
            total += loss.detach() / len(parts)
        return float(self.accelerator.reduce(total, "mean"))

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
        self.state.check_finite()
        progress, model = self.state.progress, self.state.kept_model
        set_threshold(model, self.config.threshold, progress.step / self.num_steps)
        set_blend_to(model, self.config.blend, progress.step / self.num_steps)
        with self.accelerator.autocast():
            found = evaluate_both(
                self.task,
                model,
                OnDevice(self.val_loader, self.device),
                lambda sums: self.accelerator.reduce(sums.to(self.device), "sum"),
                lambda pictures: self._quarantine(pictures, "val"),
            )
        found["occupancy"] = self._mean_over_processes(found["occupancy"])
        progress.evaluated, progress.metrics = progress.step, {key: found[key] for key in ("model", "castled")}
        self._log({"kind": "eval", "step": progress.step, "epoch": progress.step / self.steps_per_epoch, **found})
        self._save(score=(found["castled"] or found["model"])[self.task.primary_metric])

    def _quarantine(self, pictures: list[tuple[str, str]], split: str) -> None:
        if pictures:
            self.folder.quarantine(pictures, split, self.config.max_unreadable, self.task.num_examples(split))

    def _log(self, line: dict[str, Any]) -> None:
        self.folder.log(line)
        self.watch(line)
        if self.config.trackers:
            self.accelerator.log(_flat(line), step=line["step"])

    def _save(self, score: float | None = None) -> None:
        self.state.save(self.folder, self.state.progress.step / self.num_steps, score)
        self.accelerator.wait_for_everyone()

    def _restore(self, why: str) -> None:
        self.state.restore(self.folder)
        self.folder.event(why, step=self.state.progress.step)
        self.accelerator.wait_for_everyone()

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

    def _mean_over_processes(self, occupancy: dict[str, list[float]]) -> dict[str, list[float]]:
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

    def _workers(self) -> int:
        if self.config.workers is not None:
            return self.config.workers
        return min(8, (os.cpu_count() or 1) // self.shard.num_shards)


def _flat(line: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """Numbers of a log line by a path such as `castled/top1`, as trackers want them; heads are averaged."""
    flat: dict[str, float] = {}
    for key, value in line.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}/")
        elif isinstance(value, list):
            flat[prefix + key] = sum(value) / len(value)
        elif isinstance(value, (int, float)) and key != "step":
            flat[prefix + key] = value
    return flat
