"""Semantic segmentation behind the task interface."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from castling.measure.trees import Tree
from castling.models.feature_pyramid import FeaturePyramid
from castling.tasks.batches import EpochBatches, Shard
from castling.tasks.data_check import DataForm
from castling.tasks.exhibits import Exhibit
from castling.tasks.held_out import Part, open_splits, whole_of
from castling.tasks.networks import NetworkConfig, make_network, network_facts, start_network
from castling.tasks.pictures import PictureLoader, Pictures
from castling.tasks.prediction import PicturePredictor
from castling.tasks.segmentation.check import FORMS
from castling.tasks.segmentation.data import SegmentationData
from castling.tasks.segmentation.examine import examine
from castling.tasks.segmentation.losses import segmentation_losses
from castling.tasks.segmentation.metrics import MeanIoU, judge, label_maps
from castling.tasks.segmentation.model import Segmenter, SegmenterConfig
from castling.tasks.segmentation.predict import MaskOptions, interpret_masks
from castling.tasks.segmentation.sources import MaskPictures, check_classes, check_masks, open_split
from castling.tasks.segmentation.transforms import (
    EvaluationTransform,
    MaskVariationConfig,
    TrainingTransform,
    collate,
    prepare,
)
from castling.tasks.segmentation.window import Windowed, check_window, windowed
from castling.tasks.task import Batch, Deployment, Facts, Losses, Task

logger = logging.getLogger(__name__)

CALIBRATION_BATCH = 8
MANY = 1000  # masks that take so long to look at that people are told


@dataclass(frozen=True)
class WindowConfig:
    """A window through which large pictures are seen, part by part.

    Args:
        size: its side, a multiple of 32.
        stride: pixels from one window to the next, a multiple of 32.

    Raises:
        ValueError: for other numbers, or a stride that leaves gaps.
    """

    size: int = 512
    stride: int = 320

    def __post_init__(self) -> None:
        check_window(self.size, self.stride)


@dataclass(frozen=True)
class SegmentationConfig:
    """The sections of a recipe that are about segmentation.

    Args:
        model: the backbone: a plain ViT of timm's or ours with patches of 16 x 16.
        segmenter: the pyramid and the decoder.
        data: pictures and masks.
        augment: how training pictures are varied.
        window: how pictures are seen in evaluation and prediction; as a whole where null.
    """

    model: NetworkConfig
    segmenter: SegmenterConfig = field(default_factory=SegmenterConfig)
    data: SegmentationData = field(default_factory=SegmentationData)
    augment: MaskVariationConfig = field(default_factory=MaskVariationConfig)
    window: WindowConfig | None = None


class Segmentation(Task):
    """Pictures with a class for every pixel."""

    Config = SegmentationConfig
    PredictConfig = MaskOptions
    FactTypes: ClassVar = {"labels": list[str], "palette": list[list[int]] | None}
    config: SegmentationConfig

    @classmethod
    def data_forms(cls) -> Sequence[DataForm]:
        """ADE20K, Cityscapes and plain folders."""
        return FORMS

    @cached_property
    def sources(self) -> dict[str, MaskPictures | Part[MaskPictures]]:
        """Pictures and masks of each split, opened when they are first asked for."""
        data = self.config.data
        splits = open_splits(lambda split: open_split(data, split), data.held_out)
        labels = self._facts["labels"] if self._facts else splits["train"].labels
        for source in splits.values():
            check_classes(whole_of(source), labels)
        return splits

    def check_data(self) -> None:
        """Look at every mask of both splits, so that a wrong one is named now rather than at its turn."""
        wholes = {id(whole): whole for whole in map(whole_of, self.sources.values())}  # one, where some are held out
        count = sum(map(len, wholes.values()))
        if count > MANY:
            logger.info("looking at all %s masks before the first step", f"{count:,}")
        for whole in wholes.values():
            check_masks(whole, range(len(whole)))

    @property
    def labels(self) -> list[str]:
        """Names of the classes."""
        return cast(list[str], self.facts["labels"])

    def read_facts(self) -> Facts:
        """Names of the classes and their colours, and the network's own facts."""
        train = whole_of(self.sources["train"])
        return {"labels": train.labels, "palette": train.palette, **network_facts(self.config.model)}

    def build_network(self, training: bool = False) -> nn.Module:
        """Backbone, pyramid and decoder; in training the backbone has its weights."""
        config = self.config
        made = (config.model, 0, config.data.channels, self.facts)
        if training:
            vit, self.original = start_network(*made, self.loader("train", CALIBRATION_BATCH))
        else:
            vit = make_network(*made)
        return Segmenter(FeaturePyramid(cast(Any, vit), config.segmenter.dim), config.segmenter, len(self.labels))

    def loader(
        self,
        split: str,
        batch_size: int,
        seed: int | None = None,
        shard: Shard = Shard(),  # noqa: B008 - immutable
        parts: int = 1,
        workers: int = 0,
    ) -> PictureLoader:
        """Batches of a split, as the interface says: squares in training, whole pictures otherwise."""
        data, source = self.config.data, self.sources[split]
        transform = EvaluationTransform(data) if seed is None else TrainingTransform(data, self.config.augment)
        pictures = Pictures(source, transform, data.channels, seed)
        return PictureLoader(pictures, EpochBatches(len(source), batch_size, seed, shard, parts), workers, collate)

    def losses(self, network: nn.Module, batch: Batch) -> Losses:
        """Of pixels, or of masks."""
        outputs = network(batch["image"])
        return segmentation_losses(outputs, batch["labels"], self.config.segmenter, len(self.labels))

    def forward(self, network: Callable[..., Tree], batch: Batch) -> Tree:
        """Scores of classes, of whole pictures or put together from windows."""
        window = self.config.window
        if window is None:
            return network(batch["image"])
        return windowed(cast(Callable[[Tensor], Tensor], network), batch["image"], window.size, window.stride)

    def meter(self) -> MeanIoU:
        """The mean intersection over union decides."""
        return MeanIoU(self.labels)

    def agreement(self, outputs: Tree, others: Tree, batch: Batch) -> Tensor:
        """The share of pixels that get the same class."""
        pairs = zip(label_maps(outputs, batch), label_maps(others, batch), strict=True)
        return torch.stack([(one == other).float().mean() for one, other in pairs]).cpu()

    def evidence(self, outputs: Tree) -> Tensor:
        """The scores of the classes that are chosen, over all pixels."""
        scores: Tensor = outputs
        return scores.amax(1).sum((1, 2))

    def predictor(self, network: nn.Module, options: MaskOptions | None = None) -> PicturePredictor:
        """Pictures with a class for every pixel."""
        data, window = self.config.data, self.config.window
        looking = network if window is None else Windowed(network, window.size, window.stride)
        interpret = interpret_masks(data, self.labels, self.facts.get("palette"), options or MaskOptions())
        return PicturePredictor(looking, prepare(data), cast(Any, interpret), data.channels)

    def deployment(self) -> Deployment:
        """Scores of classes at a quarter of the input's size; the best one, resized, is the class of a pixel."""
        data = self.config.data
        facts = {"labels": self.labels, "palette": self.facts.get("palette")}
        return Deployment(data.example(), data.preprocessing(), ("scores",), facts)

    def examine(self, network: nn.Module, batches: Iterable[Batch]) -> Sequence[Exhibit]:
        """Each class, what it is taken for, and pictures beside the truth: some, and the worst."""
        judged = (picture for batch in batches for picture in judge(cast(Any, self.forward(network, batch)), batch))
        return examine(judged, self.sources["val"], self.labels, self.facts.get("palette"))
