"""Masked pretraining behind the task interface."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from castling.measure.trees import Tree
from castling.models.input_size import check_image_size
from castling.tasks.batches import EpochBatches, Shard
from castling.tasks.exhibits import Exhibit, Gallery
from castling.tasks.held_out import Part, open_splits
from castling.tasks.networks import NetworkConfig, make_network, network_facts, start_network
from castling.tasks.pictures import PictureLoader, Pictures
from castling.tasks.prediction import PicturePredictor, Seen
from castling.tasks.preparation import eval_transform, in_two_steps, train_transform
from castling.tasks.pretraining.data import CropConfig, Numbered, PartlySeen, PretrainingData, open_pictures
from castling.tasks.pretraining.decoder import DecoderConfig
from castling.tasks.pretraining.losses import drawing_loss
from castling.tasks.pretraining.metrics import DrawingError
from castling.tasks.pretraining.model import MaskedAutoencoder
from castling.tasks.pretraining.patches import Masked, Patch, fixed_places, hidden_places, masked_by_share
from castling.tasks.pretraining.predict import HidingOptions, WithHidden, interpret_drawings
from castling.tasks.task import Batch, Deployment, Facts, Losses, Task

CLOSE = 0.1  # difference of two drawings, root mean square in the unit of the error, that nobody sees
SHOWN = 8  # pictures of the gallery


@dataclass(frozen=True)
class PretrainingConfig:
    """The sections of a recipe that are about masked pretraining.

    Args:
        model: the ViT that is pretrained; it begins a later run as its `model.weights`.
        decoder: what draws hidden patches.
        data: the pictures.
        augment: how training pictures are varied.
        masked: the share of patches that are hidden.
        normalised: whether every patch is to be drawn with mean 0 and variance 1.

    Raises:
        ValueError: for a share outside (0, 1), or a network that is converted.
    """

    model: NetworkConfig
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    data: PretrainingData = field(default_factory=PretrainingData)
    augment: CropConfig = field(default_factory=CropConfig)
    masked: float = 0.75
    normalised: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.masked < 1:
            raise ValueError(f"masked must lie between 0 and 1; got {self.masked}")
        if self.model.convert is not None:
            raise ValueError("model.convert is not for pretraining: pretrain the network as it is, then convert it")


class Pretraining(Task):
    """Pictures of which parts are hidden."""

    Config = PretrainingConfig
    PredictConfig = HidingOptions
    config: PretrainingConfig

    @cached_property
    def sources(self) -> dict[str, Numbered | Part[Numbered]]:
        """The pictures of each split, opened when they are first asked for."""
        data = self.config.data
        return open_splits(lambda split: open_pictures(data, split), data.held_out)

    @cached_property
    def patch(self) -> Patch:
        """The size of a patch, as the network has it."""
        with torch.device("meta"):
            plain = replace(self.config, model=replace(self.config.model, input_size=None))
            return Pretraining(plain, self.facts)._made().patch_size

    @property
    def masked(self) -> Masked:
        """How many patches of a picture are hidden.

        Raises:
            ValueError: if the patches do not fill the pictures.
        """
        side = self.config.data.image_size
        check_image_size((side, side), self.patch)
        return masked_by_share((side // self.patch[0]) * (side // self.patch[1]), self.config.masked)

    def read_facts(self) -> Facts:
        """The network's own facts."""
        return network_facts(self.config.model)

    def build_network(self, training: bool = False) -> nn.Module:
        """The ViT and its decoder; in training the ViT has its weights, or positions to begin with."""
        if not training:
            return self._made()
        config = self.config
        backbone, _ = start_network(config.model, 0, config.data.channels, self.facts, ())
        network = MaskedAutoencoder(backbone, config.decoder)
        if config.model.weights is None:
            network.start_positions()
        return network

    def _made(self) -> MaskedAutoencoder:
        config = self.config
        return MaskedAutoencoder(make_network(config.model, 0, config.data.channels, self.facts), config.decoder)

    def loader(
        self,
        split: str,
        batch_size: int,
        seed: int | None = None,
        shard: Shard = Shard(),  # noqa: B008 - immutable
        parts: int = 1,
        workers: int = 0,
    ) -> PictureLoader:
        """Batches of a split, as the interface says, with the places that are seen of each picture."""
        data, source = self.config.data, self.sources[split]
        whole = eval_transform(data) if seed is None else train_transform(data, self.config.augment)
        transform, finish = in_two_steps(whole)
        pictures = Pictures(source, PartlySeen(transform, self.masked, seed is not None), data.channels, seed)
        batches = EpochBatches(len(source), batch_size, seed, shard, parts)
        return PictureLoader(pictures, batches, workers, finish=finish)

    def training_inputs(self) -> Sequence[tuple[Tensor, ...]]:
        """An empty picture and places that are seen of it."""
        return [(self.config.data.example(), fixed_places(self.masked, 0)[None])]

    def losses(self, network: nn.Module, batch: Batch) -> Losses:
        """The error of hidden patches."""
        images, visible = batch["image"], batch["visible"]
        drawn = network(images, visible)["patches"]
        return drawing_loss(drawn, images, visible, self.patch, self.config.normalised)

    def forward(self, network: Callable[..., Tree], batch: Batch) -> Tree:
        """What a network draws.

        Raises:
            ValueError: for an engine: its file gives features and draws nothing.
        """
        if not isinstance(network, nn.Module):
            raise ValueError("a file gives the features of whole pictures: there is no error to measure it by")
        return network(batch["image"], batch["visible"])

    def meter(self) -> DrawingError:
        """The error of hidden patches decides; less is better."""
        return DrawingError(self.patch, self.config.normalised)

    def agreement(self, outputs: Tree, others: Tree, batch: Batch) -> Tensor:
        """The share of hidden patches that both draw alike, to the eye."""
        apart = (outputs["patches"].float() - others["patches"].float()).square().mean(-1).sqrt()  # (B, N)
        hidden = hidden_places(batch["visible"], apart.shape[1])
        return ((apart < CLOSE) & hidden).sum(1) / hidden.sum(1)

    def predictor(self, network: nn.Module, options: HidingOptions | None = None) -> PicturePredictor:
        """Pictures with their hidden parts drawn."""
        config, options = self.config, options or HidingOptions()
        masked = config.masked if options.masked is None else options.masked
        interpret = interpret_drawings(config.data, self.patch, config.normalised)
        drawing = WithHidden(network, self.patch, masked, options.seed)
        return PicturePredictor(drawing, eval_transform(config.data), interpret, config.data.channels)

    def deployment(self) -> Deployment:
        """One output, the features of all patches of a whole picture."""
        data = self.config.data
        return Deployment(data.example(), data.preprocessing(), predicts=False)

    def examine(self, network: nn.Module, batches: Iterable[Batch]) -> Sequence[Exhibit]:
        """Validation pictures with their hidden parts drawn, spread over the split."""
        source = self.sources["val"]
        interpret = interpret_drawings(self.config.data, self.patch, self.config.normalised)
        chosen = set(np.linspace(0, len(source) - 1, min(SHOWN, len(source))).astype(int).tolist())
        pictures = []
        for batch in batches:
            some = [place for place, index in enumerate(batch["index"].tolist()) if index in chosen]
            if not some:
                continue
            shown = {name: batch[name][some] for name in ("image", "visible")}
            seen = [Seen(source.name(index), (0, 0)) for index in batch["index"][some].tolist()]
            drawn = interpret({**shown, **self.forward(network, shown)}, seen)
            pictures += [(one.drawn, f"{one.name}: {one.drawing_error:.3g}") for one in drawn]
        caption = "What was seen, with hidden patches drawn in, and the whole; with the error of the hidden ones."
        return [Gallery("drawn", "Hidden parts drawn", caption, pictures)]
