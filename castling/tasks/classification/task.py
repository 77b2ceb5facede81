"""Image classification behind the task interface."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from timm.data import Mixup
from torch import Tensor, nn

from castling.measure.trees import Tree
from castling.tasks.batches import EpochBatches, Shard
from castling.tasks.classification.check import FORMS
from castling.tasks.classification.data import AugmentConfig, DataConfig, Labelled, make_source
from castling.tasks.classification.distillation import DistillationConfig, Teacher, make_teacher, write_logits
from castling.tasks.classification.judge import LabelJudge
from castling.tasks.classification.losses import total_loss
from castling.tasks.classification.metrics import Accuracy
from castling.tasks.classification.predict import LabelOptions, interpret_logits
from castling.tasks.data_check import DataForm
from castling.tasks.held_out import Part, open_splits
from castling.tasks.networks import NetworkConfig, make_network, network_facts, start_network
from castling.tasks.picture_sources import LabelledSource
from castling.tasks.pictures import PictureLoader, Pictures, Source
from castling.tasks.prediction import PicturePredictor
from castling.tasks.preparation import at_one_of, eval_transform, in_two_steps, train_transform
from castling.tasks.task import Batch, Deployment, Facts, Losses, Moment, Task

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

    Raises:
        ValueError: for smoothing outside [0, 1), precomputed logits for pictures that are mixed, or a network that
            follows its original and is not converted.
    """

    model: NetworkConfig
    data: DataConfig = field(default_factory=DataConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    smoothing: float = 0.1
    distillation: DistillationConfig | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing < 1:
            raise ValueError(f"smoothing must lie in [0, 1); got {self.smoothing}")
        mixed = self.augment.mixup > 0 or self.augment.cutmix > 0
        if mixed and self.distillation is not None and self.distillation.logits is not None:
            raise ValueError("precomputed logits know no mixed pictures: set augment.mixup=0 and augment.cutmix=0")
        follows_itself = self.distillation is not None and self.distillation.model == "self"
        if self.model.convert is None and follows_itself:
            raise ValueError("only a converted network has an original to learn from: set model.convert")


class Classification(Task):
    """Pictures with one label each."""

    Config = ClassificationConfig
    PredictConfig = LabelOptions
    FactTypes: ClassVar = {"labels": list[str]}
    config: ClassificationConfig

    def __init__(self, config: ClassificationConfig, facts: Facts | None = None) -> None:
        super().__init__(config, facts)
        self.teacher: Teacher | None = None

    @classmethod
    def following_original(cls, config: ClassificationConfig) -> ClassificationConfig:
        """The original's probabilities count as much as the labels."""
        return replace(config, distillation=DistillationConfig(kind="soft", model="self", alpha=0.5))

    @cached_property
    def sources(self) -> dict[str, LabelledSource | Part[LabelledSource]]:
        """The pictures of each split, opened when they are first asked for."""
        data = self.config.data
        return open_splits(lambda split: make_source(data, split), data.held_out)

    @property
    def labels(self) -> list[str]:
        """Names of the classes."""
        return cast(list[str], self.facts["labels"])

    @classmethod
    def data_forms(cls) -> Sequence[DataForm]:
        """Folders of classes."""
        return FORMS

    def read_facts(self) -> Facts:
        """Names of the classes, and the network's own facts."""
        return {"labels": self.sources["train"].labels, **network_facts(self.config.model)}

    def build_network(self, training: bool = False) -> nn.Module:
        """The network; in training with its weights and teacher, and using a distillation head if it has one."""
        config, data = self.config, self.config.data
        made = (config.model, len(self.labels), data.channels, self.facts)
        if not training:
            return make_network(*made)
        network, self.original = start_network(*made, self.loader("train", CALIBRATION_BATCH))
        if config.distillation is not None:
            self.teacher = self._make_teacher(config.distillation)
            if hasattr(network, "set_distilled_training"):
                cast(Any, network).set_distilled_training(True)
        return network

    def loader(
        self,
        split: str,
        batch_size: int,
        seed: int | None = None,
        shard: Shard = Shard(),  # noqa: B008 - immutable
        parts: int = 1,
        workers: int = 0,
    ) -> PictureLoader:
        """Batches of a split, as the interface says; in training at the largest of all sizes.

        Raises:
            ValueError: for parts of batches that mixup cannot pair.
        """
        data, augment, source = self.config.data, self.config.augment, self.sources[split]
        if seed is None:
            transform, finish = in_two_steps(eval_transform(data))
            pictures = Pictures(source, Labelled(transform), data.channels)
            return PictureLoader(pictures, EpochBatches(len(source), batch_size, shard=shard), workers, finish=finish)
        if self.mixup is not None and batch_size // (shard.num_shards * parts) % 2:
            raise ValueError(
                f"mixup pairs pictures, but {parts * shard.num_shards} parts of batch_size {batch_size} are odd; "
                "choose another, or set augment.mixup=0 and augment.cutmix=0"
            )
        transform, finish = in_two_steps(train_transform(data.at_largest(), augment))
        pictures = Pictures(source, Labelled(transform), data.channels, seed)
        batches = EpochBatches(len(source), batch_size, seed, shard, parts, augment.repeats)
        return PictureLoader(pictures, batches, workers, finish=finish)

    @cached_property
    def mixup(self) -> Mixup | None:
        """What mixes training pictures; None where the recipe mixes none."""
        augment = self.config.augment
        if not (augment.mixup > 0 or augment.cutmix > 0):
            return None
        return Mixup(augment.mixup, augment.cutmix, label_smoothing=self.config.smoothing, num_classes=len(self.labels))

    def at_moment(self, batch: Batch, moment: Moment) -> Batch:
        """At one of the sizes, which its step decides."""
        return {**batch, "image": at_one_of(batch["image"], self.config.data.sizes, moment.step)}

    def losses(self, network: nn.Module, batch: Batch) -> Losses:
        """The loss by labels, and by the teacher where there is one."""
        images, targets = batch["image"], batch["target"]
        if self.mixup is not None:
            images, targets = self.mixup(images, targets)
        teacher_logits = None if self.teacher is None else self.teacher(images, batch["index"])
        return total_loss(network(images), targets, self.config.smoothing, teacher_logits, self.config.distillation)

    def meter(self) -> Accuracy:
        """Top-1 accuracy decides."""
        return LabelJudge().meter()

    def agreement(self, outputs: Tree, others: Tree, batch: Batch) -> Tensor:
        """Whether both choose the same class."""
        return LabelJudge().agreement(outputs, others, batch)

    def evidence(self, outputs: Tree) -> Tensor:
        """The logit of the class that is chosen."""
        logits: Tensor = outputs
        return logits.amax(1)

    def predictor(self, network: nn.Module, options: LabelOptions | None = None) -> PicturePredictor:
        """Labels with probabilities."""
        data = self.config.data
        interpret = interpret_logits(self.labels, options or LabelOptions())
        return PicturePredictor(network, eval_transform(data), interpret, data.channels)

    def deployment(self) -> Deployment:
        """One output, the logits, in the order of the labels."""
        data = self.config.data
        return Deployment(data.example(), data.preprocessing(), None, {"labels": self.labels})

    @torch.no_grad()
    def write_answers(self, network: nn.Module, batches: Iterable[Batch], folder: Path) -> int:
        """Write the logits of all training pictures with their names.

        Those of unreadable pictures are not numbers; in training other pictures take their place.
        """
        source = self.sources["train"]
        found = torch.full((len(source), len(self.labels)), torch.nan)
        for batch in batches:
            found[batch["index"].cpu()] = network(batch["image"]).float().cpu()
        write_logits(folder, found, _names(source))
        return len(source)

    def _make_teacher(self, distillation: DistillationConfig) -> Teacher:
        data = self.config.data
        if distillation.model == "self":
            original = self.original  # of the student's sizes and normalisation
            assert original is not None
            return lambda images, indices: original.to(images.device)(images).detach()
        names = _names(self.sources["train"])
        return make_teacher(distillation, names, len(self.labels), data.channels, data.mean, data.std)


def _names(source: Source) -> list[str]:
    return [source.name(index) for index in range(len(source))]
