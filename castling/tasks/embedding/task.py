"""Networks from pictures to vectors, behind the task interface.

There are no labels: a converted network learns to give what it gave before, and is measured by that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from castling.measure.trees import Tree
from castling.tasks.batches import EpochBatches, Shard
from castling.tasks.embedding.data import FolderConfig, GentleConfig, ImageOnly
from castling.tasks.embedding.losses import output_loss
from castling.tasks.embedding.metrics import OutputError
from castling.tasks.embedding.predict import VectorOptions, interpret_vectors
from castling.tasks.networks import NetworkConfig, head_width, make_network, network_facts, start_network
from castling.tasks.picture_folders import FolderPictures, open_folder
from castling.tasks.pictures import PictureLoader, Pictures
from castling.tasks.prediction import PicturePredictor
from castling.tasks.preparation import at_one_of, eval_transform, in_two_steps, train_transform
from castling.tasks.task import Batch, Deployment, Facts, Losses, Moment, Task

CALIBRATION_BATCH = 32


@dataclass(frozen=True)
class EmbeddingConfig:
    """The sections of a recipe.

    Args:
        model: the network, converted from one with weights.
        data: the pictures.
        augment: how training pictures are varied.

    Raises:
        ValueError: for a network that is not converted: without labels it has nothing to learn.
    """

    model: NetworkConfig
    data: FolderConfig = field(default_factory=FolderConfig)
    augment: GentleConfig = field(default_factory=GentleConfig)

    def __post_init__(self) -> None:
        if self.model.convert is None:
            raise ValueError("without labels only a converted network has something to learn: set model.convert")


class Embedding(Task):
    """Pictures alone."""

    Config = EmbeddingConfig
    PredictConfig = VectorOptions
    FactTypes: ClassVar = {"num_outputs": int}
    config: EmbeddingConfig

    @cached_property
    def sources(self) -> dict[str, FolderPictures]:
        """The pictures of each split, opened when they are first asked for."""
        return {split: open_folder(self.config.data.root, split) for split in ("train", "val")}

    def read_facts(self) -> Facts:
        """The width of the network's head, and the network's own facts."""
        return {"num_outputs": head_width(self.config.model), **network_facts(self.config.model)}

    def build_network(self, training: bool = False) -> nn.Module:
        """The network; in training with its weights and its original."""
        config, data = self.config, self.config.data
        made = (config.model, self.facts["num_outputs"], data.channels, self.facts)
        if not training:
            return make_network(*made)
        network, self.original = start_network(*made, self.loader("train", CALIBRATION_BATCH))
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
        """Batches of a split, as the interface says; in training at the largest of all sizes."""
        data, source = self.config.data, self.sources[split]
        whole = eval_transform(data) if seed is None else train_transform(data.at_largest(), self.config.augment)
        transform, finish = in_two_steps(whole)
        pictures = Pictures(source, ImageOnly(transform), data.channels, seed)
        batches = EpochBatches(len(source), batch_size, seed, shard, parts)
        return PictureLoader(pictures, batches, workers, finish=finish)

    def at_moment(self, batch: Batch, moment: Moment) -> Batch:
        """At one of the sizes, which its step decides."""
        return {**batch, "image": at_one_of(batch["image"], self.config.data.sizes, moment.step)}

    def losses(self, network: nn.Module, batch: Batch) -> Losses:
        """How far the outputs are from the original's."""
        images = batch["image"]
        with torch.no_grad():
            wanted = self._wanted(images)
        return output_loss(network(images), wanted)

    def meter(self) -> OutputError:
        """The relative error of the outputs decides."""
        return OutputError(self._wanted)

    def agreement(self, outputs: Tree, others: Tree, batch: Batch) -> Tensor:
        """The cosine of both outputs, from 0 on."""
        return cosine_similarity(outputs.float().flatten(1), others.float().flatten(1), dim=1).clamp_min(0)

    def predictor(self, network: nn.Module, options: VectorOptions | None = None) -> PicturePredictor:
        """Vectors."""
        data = self.config.data
        return PicturePredictor(network, eval_transform(data), interpret_vectors, data.channels)

    def deployment(self) -> Deployment:
        """One output, the vector."""
        data = self.config.data
        return Deployment(data.example(), data.preprocessing())

    def _wanted(self, images: Tensor) -> Tensor:
        """What the original gives; of a saved run, whose original is made again from its weights."""
        if self.original is None:
            made = (self.config.model, self.facts["num_outputs"], self.config.data.channels, self.facts)
            _, self.original = start_network(*made, self.loader("train", CALIBRATION_BATCH))
        assert self.original is not None
        wanted: Tensor = self.original.to(images.device)(images)
        return wanted
