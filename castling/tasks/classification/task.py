"""Image classification: what the training loop and the command line ask of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import torch
from timm.data import Mixup
from torch import Tensor, nn
from torch.utils.data import DataLoader

from castling.conversion import calibrate, original_of
from castling.tasks.batches import EpochBatches, Shard
from castling.tasks.classification.data import (
    AugmentConfig,
    Batch,
    DataConfig,
    Pictures,
    eval_transform,
    make_loader,
    make_source,
    train_transform,
)
from castling.tasks.classification.distillation import DistillationConfig, Teacher, make_teacher
from castling.tasks.classification.losses import total_loss
from castling.tasks.classification.metrics import Accuracy
from castling.tasks.classification.model import ConvertConfig, ModelConfig, build_model, load_stage
from castling.tasks.classification.sources import Source
from castling.tasks.imitation import attention_losses, feature_losses

CALIBRATION_BATCH = 32


@dataclass(frozen=True)
class ClassificationConfig:
    """The sections of a recipe that are about classification.

    Args:
        model: the network.
        data: the pictures.
        augment: how training pictures are varied.
        smoothing: share of the label's probability that goes to all classes alike.
        distillation: a teacher; None for none.
        objective: what a converted network learns: the `task`, each of the original's `attention` outputs by itself, or
            the `features` of all its blocks. The last two look at no label.

    Raises:
        ValueError: for smoothing outside [0, 1), precomputed logits for pictures that are mixed, or something to learn
            from the original where the network is not converted.
    """

    model: ModelConfig
    data: DataConfig = field(default_factory=DataConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    smoothing: float = 0.1
    distillation: DistillationConfig | None = None
    objective: Literal["task", "attention", "features"] = "task"

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing < 1:
            raise ValueError(f"smoothing must lie in [0, 1); got {self.smoothing}")
        mixed = self.augment.mixup > 0 or self.augment.cutmix > 0
        if mixed and self.distillation is not None and self.distillation.logits is not None:
            raise ValueError("precomputed logits know no mixed pictures: set augment.mixup=0 and augment.cutmix=0")
        if self.model.convert is None and (self.objective != "task" or self._follows_itself()):
            raise ValueError("only a converted network has an original to learn from: set model.convert")

    def _follows_itself(self) -> bool:
        return self.distillation is not None and self.distillation.model == "self"


class Classification:
    """The four methods of a task, and what a run keeps beside its weights.

    Args:
        config: the recipe's sections.

    Attributes:
        labels: names of the classes.
        primary_metric: the one that decides which checkpoint is best.
    """

    Config = ClassificationConfig
    primary_metric = "top1"

    def __init__(self, config: ClassificationConfig) -> None:
        self.config = config
        self.train_source, self.val_source = (make_source(config.data, split) for split in ("train", "val"))
        self.labels = self.train_source.labels
        augment = config.augment
        self.mixup: Mixup | None = None
        if augment.mixup > 0 or augment.cutmix > 0:
            self.mixup = Mixup(
                augment.mixup, augment.cutmix, label_smoothing=config.smoothing, num_classes=len(self.labels)
            )
        self.teacher: Teacher | None = None
        self.original: nn.Module | None = None

    def build_model(self) -> nn.Module:
        """The network, in training mode; one with a distillation head uses it if there is a teacher."""
        model = build_model(self.config.model, len(self.labels), self.config.data.channels)
        if self.config.model.convert is not None:
            self._begin_conversion(model, self.config.model.convert)
        if self.config.distillation is not None and hasattr(model, "set_distilled_training"):
            cast(Any, model).set_distilled_training(True)
        return model

    def build_original(self) -> nn.Module:
        """What the network of the recipe was before it was converted, frozen."""
        return original_of(build_model(self.config.model, len(self.labels), self.config.data.channels))

    def _begin_conversion(self, model: nn.Module, config: ConvertConfig) -> None:
        """Keep what the network was, and give every head its scale, or the weights of an earlier stage."""
        self.original = original_of(model)
        if config.start is not None:
            load_stage(model, config.start)
        elif config.calibrate:
            calibrate(model, itertools.islice(self.build_loader("train", CALIBRATION_BATCH), config.calibrate))

    @staticmethod
    def rebuild(config: ClassificationConfig, labels: Sequence[str]) -> nn.Module:
        """The network of a saved run, without its data or its starting weights."""
        return build_model(replace(config.model, weights=None), len(labels), config.data.channels)

    def build_loader(
        self,
        split: str,
        batch_size: int,
        seed: int | None = None,
        shard: Shard = Shard(),  # noqa: B008 - immutable
        parts: int = 1,
        workers: int = 0,
    ) -> DataLoader[Batch]:
        """Batches of a split: shuffled and augmented for training, or as they are and in order.

        Args:
            split: `train` or `val`.
            batch_size: over all processes.
            seed: of shuffling and augmentation; None for neither.
            shard: the part of this process.
            parts: in how many parts a training batch comes.
            workers: reading processes.
        """
        config, source = self.config, self.source(split)
        if seed is None:
            pictures = Pictures(source, eval_transform(config.data), config.data)
            return make_loader(pictures, EpochBatches(len(source), batch_size, shard=shard), workers)
        if self.mixup is not None and batch_size // (shard.num_shards * parts) % 2:
            raise ValueError(
                f"mixup pairs pictures, but {parts * shard.num_shards} parts of batch_size {batch_size} are odd; "
                "choose another, or set augment.mixup=0 and augment.cutmix=0"
            )
        if self.config.objective != "task" and shard.num_shards > 1:
            raise ValueError(f"objective {self.config.objective!r} runs in one process; got {shard.num_shards}")
        self.teacher = self._make_teacher()  # before the first step: a teacher that does not fit is said now
        pictures = Pictures(source, train_transform(config.data, config.augment), config.data, seed)
        batches = EpochBatches(len(source), batch_size, seed, shard, parts, config.augment.repeats)
        return make_loader(pictures, batches, workers)

    def source(self, split: str) -> Source:
        """The pictures of a split."""
        return self.train_source if split == "train" else self.val_source

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """The loss of a training batch, under `loss`, and its parts."""
        images, targets = batch["image"], batch["target"]
        if self.config.objective != "task":
            return self._learn_from_original(model, images)
        if self.mixup is not None:
            images, targets = self.mixup(images, targets)
        teacher_logits = None if self.teacher is None else self.teacher(images, batch["index"])
        return total_loss(model(images), targets, self.config.smoothing, teacher_logits, self.config.distillation)

    def _learn_from_original(self, model: nn.Module, images: Tensor) -> dict[str, Tensor]:
        assert self.original is not None
        learn = attention_losses if self.config.objective == "attention" else feature_losses
        losses = learn(model, self.original.to(images.device), images)
        return {"loss": torch.stack(list(losses.values())).mean(), **losses}

    @torch.no_grad()
    def evaluate(
        self, model: nn.Module, batches: Iterable[Batch], reduce: Callable[[Tensor], Tensor] = lambda sums: sums
    ) -> dict[str, float]:
        """Metrics of a model in evaluation mode; `reduce` adds up the sums of several processes."""
        accuracy = Accuracy()
        for batch in batches:
            accuracy.add(model(batch["image"]), batch["target"])
        return accuracy.metrics(reduce)

    @torch.no_grad()
    def logits(self, model: nn.Module, batches: Iterable[Batch], split: str = "train") -> tuple[Tensor, list[str]]:
        """Logits `(examples, classes)` of all pictures, with their names: what a later student can follow.

        Those of unreadable pictures are not numbers; in training other pictures take their place.
        """
        found, names = [], []
        for batch in batches:
            logits = model(batch["image"]).float().cpu()
            logits[batch["target"].cpu() < 0] = torch.nan
            found.append(logits)
            names += [self.source(split).name(index) for index in batch["index"].tolist()]
        return torch.cat(found), names

    def example(self) -> Tensor:
        """An empty picture `(1, C, H, W)`, for counting and probing."""
        data = self.config.data
        return torch.zeros(1, data.channels, data.image_size, data.image_size)

    def num_examples(self, split: str) -> int:
        """Pictures of a split."""
        return len(self.source(split))

    def _make_teacher(self) -> Teacher | None:
        distillation, data = self.config.distillation, self.config.data
        if distillation is None:
            return None
        if distillation.model == "self" and self.original is not None:
            original = self.original  # of the student's sizes and normalisation
            return lambda images, indices: original.to(images.device)(images).detach()
        names = [self.train_source.name(index) for index in range(len(self.train_source))]
        return make_teacher(distillation, names, len(self.labels), data.channels, data.mean, data.std)

    def keepsakes(self) -> dict[str, Any]:
        """What a run folder keeps for later use of the weights, by file name."""
        return {"labels.json": self.labels}
