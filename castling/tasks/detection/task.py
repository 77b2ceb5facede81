"""Object detection behind the task interface."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torchvision.ops import box_iou

from castling.measure.trees import Tree
from castling.tasks.batches import EpochBatches, Shard
from castling.tasks.data_check import DataForm
from castling.tasks.detection.annotations import Annotations
from castling.tasks.detection.check import FORMS
from castling.tasks.detection.data import DetectionData, check_classes, open_split
from castling.tasks.detection.decoding import DetectorWithSelection, Found, SelectConfig, select
from castling.tasks.detection.examine import examine
from castling.tasks.detection.losses import AssignerName, detection_losses
from castling.tasks.detection.metrics import AveragePrecision, judge
from castling.tasks.detection.model import Detector, DetectorConfig
from castling.tasks.detection.predict import BoxOptions, interpret_boxes
from castling.tasks.detection.transforms import (
    BoxVariationConfig,
    EvaluationTransform,
    TrainingTransform,
    collate,
    prepare,
)
from castling.tasks.exhibits import Exhibit
from castling.tasks.held_out import Part, open_splits, whole_of
from castling.tasks.networks import NetworkConfig, make_network, network_facts, start_network
from castling.tasks.pictures import PictureLoader, Pictures
from castling.tasks.prediction import PicturePredictor
from castling.tasks.preparation import at_one_of
from castling.tasks.task import Batch, Deployment, Facts, Losses, Moment, Task

CALIBRATION_BATCH = 32
MAPS = (2, 3, 4)  # those of strides 8, 16 and 32, as timm counts the stages of convolutional networks
PIXELS = 0.01  # that boxes may differ by in another engine
SURE = SelectConfig(score=0.3)  # what two detectors are compared by


@dataclass(frozen=True)
class DetectionConfig:
    """The sections of a recipe that are about detection.

    Args:
        model: the backbone: a network of which timm gives maps at strides 8, 16 and 32.
        detector: neck and head.
        data: pictures and boxes.
        augment: how training pictures are varied.
        select: which boxes count in evaluation.
        static_share: the share of training in which boxes are assigned by geometry alone (ATSS), before predictions
            decide as well (task-aligned); head v1 has one way throughout (SimOTA).

    Raises:
        ValueError: for a share outside [0, 1].
    """

    model: NetworkConfig
    detector: DetectorConfig = field(default_factory=DetectorConfig)
    data: DetectionData = field(default_factory=DetectionData)
    augment: BoxVariationConfig = field(default_factory=BoxVariationConfig)
    select: SelectConfig = field(default_factory=SelectConfig)
    static_share: float = 1 / 3

    def __post_init__(self) -> None:
        if not 0 <= self.static_share <= 1:
            raise ValueError(f"static_share must lie in [0, 1]; got {self.static_share}")


class Detection(Task):
    """Pictures with boxes."""

    Config = DetectionConfig
    PredictConfig = BoxOptions
    FactTypes: ClassVar = {"labels": list[str], "category_ids": list[int]}
    config: DetectionConfig

    @classmethod
    def data_forms(cls) -> Sequence[DataForm]:
        """COCO, VOC and YOLO."""
        return FORMS

    @cached_property
    def sources(self) -> dict[str, Annotations | Part[Annotations]]:
        """Pictures and boxes of each split, opened when they are first asked for."""
        data = self.config.data
        splits = open_splits(lambda split: open_split(data, split), data.held_out)
        known = self._facts or {name: getattr(whole_of(splits["train"]), name) for name in ("labels", "category_ids")}
        for source in splits.values():
            check_classes(whole_of(source), known["labels"], known["category_ids"])
        return splits

    @property
    def labels(self) -> list[str]:
        """Names of the classes."""
        return cast(list[str], self.facts["labels"])

    def read_facts(self) -> Facts:
        """Names of the classes and their numbers in the data, and the network's own facts."""
        train = whole_of(self.sources["train"])
        return {"labels": train.labels, "category_ids": train.category_ids, **network_facts(self.config.model)}

    def build_network(self, training: bool = False) -> nn.Module:
        """Backbone, neck and head; in training the backbone has its weights."""
        config = self.config
        backbone = replace(config.model, options={"out_indices": MAPS, **config.model.options})
        made = (backbone, None, config.data.channels, self.facts)
        if not training:
            return Detector(make_network(*made), config.detector, len(self.labels))
        network, self.original = start_network(*made, self.loader("train", CALIBRATION_BATCH))
        return Detector(network, config.detector, len(self.labels))

    def loader(
        self,
        split: str,
        batch_size: int,
        seed: int | None = None,
        shard: Shard = Shard(),  # noqa: B008 - immutable
        parts: int = 1,
        workers: int = 0,
    ) -> PictureLoader:
        """Batches of a split, as the interface says; in training at the largest of all sizes."""
        data, source = self.config.data, self.sources[split]
        if seed is None:
            pictures = Pictures(source, EvaluationTransform(data), data.channels)
        else:
            largest = replace(data, image_size=max(data.sizes, default=data.image_size))
            pictures = Pictures(source, TrainingTransform(largest, self.config.augment), data.channels, seed)
        batches = EpochBatches(len(source), batch_size, seed, shard, parts)
        return PictureLoader(pictures, batches, workers, collate)

    def at_moment(self, batch: Batch, moment: Moment) -> Batch:
        """At one of the sizes, which its step decides, and with the way to assign boxes."""
        sizes, images = self.config.data.sizes, batch["image"]
        resized = at_one_of(images, sizes, moment.step)
        batch = {**batch, "image": resized, "boxes": batch["boxes"] * (resized.shape[-1] / images.shape[-1])}
        dynamic = moment.step >= self.config.static_share * moment.num_steps
        return {**batch, "assigner": "task_aligned" if dynamic else "atss"}

    def losses(self, network: nn.Module, batch: Batch) -> Losses:
        """Of classes, boxes and distances."""
        detector = self.config.detector
        assigner: AssignerName = "simota" if detector.head == "v1" else batch.get("assigner", "atss")
        return detection_losses(network(batch["image"]), batch, detector, assigner)

    def meter(self) -> AveragePrecision:
        """COCO's average precision decides."""
        return AveragePrecision(self.labels, self.config.select)

    def agreement(self, outputs: Tree, others: Tree, batch: Batch) -> Tensor:
        """The share of objects, of both detectors, that the other one sees as well."""
        one, other = (
            [select(*pair, SURE) for pair in zip(tree["scores"].float(), tree["boxes"].float(), strict=True)]
            for tree in (outputs, others)
        )
        return torch.tensor([shared_objects(*pair) for pair in zip(one, other, strict=True)])

    def evidence(self, outputs: Tree) -> Tensor:
        """Squares of all scores, of which the surest count most."""
        scores: Tensor = outputs["scores"]
        return scores.float().square().sum((1, 2))

    def predictor(self, network: nn.Module, options: BoxOptions | None = None) -> PicturePredictor:
        """Boxes with labels and scores."""
        data = self.config.data
        interpret = interpret_boxes(self.labels, self.facts["category_ids"], data.image_size, options or BoxOptions())
        return PicturePredictor(network, prepare(data), interpret, data.channels)

    def deployment(self) -> Deployment:
        """Scores and boxes of all points, in pixels of the input; finished, the boxes that are left of them."""
        data = self.config.data
        return Deployment(
            data.example(),
            data.preprocessing(),
            facts={"labels": self.labels},
            finish=lambda network: DetectorWithSelection(network, self.config.select),
            tolerance=PIXELS,
        )

    def examine(self, network: nn.Module, batches: Iterable[Batch]) -> Sequence[Exhibit]:
        """Precision over recall, and pictures with the truth beside what was seen: some, and the worst."""
        pictures = [
            picture for batch in batches for picture in judge(self.forward(network, batch), batch, self.config.select)
        ]
        return examine(pictures, self.sources["val"], self.labels)


def shared_objects(one: Found, other: Found, overlap: float = 0.5) -> float:
    """The share of objects, of both, that have a partner in the other: the same class, and half of the box or more.

    Example:
        >>> box = torch.tensor([[0.0, 0.0, 10.0, 10.0]])
        >>> one = Found(torch.ones(1), torch.zeros(1), box)
        >>> shared_objects(one, one._replace(boxes=box + 1)), shared_objects(one, one._replace(boxes=box + 9))
        (1.0, 0.0)
    """
    total = len(one.labels) + len(other.labels)
    if total == 0:
        return 1.0
    paired = (box_iou(one.boxes, other.boxes) >= overlap) & (one.labels[:, None] == other.labels)
    return float(paired.any(0).sum() + paired.any(1).sum()) / total
