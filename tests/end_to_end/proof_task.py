"""A second task, of the tests alone: for every patch of a picture how bright it is and how much it varies.

Dense, two outputs in a dictionary, judged by a median error: less is better, and medians of processes do not add up.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from castling.measure.metric import Metric
from castling.tasks.batches import EpochBatches, Shard
from castling.tasks.networks import NetworkConfig, make_network, start_network
from castling.tasks.pictures import PictureLoader, Pictures
from castling.tasks.prediction import PicturePredictor
from castling.tasks.preparation import PictureConfig, VariationConfig, eval_transform, train_transform
from castling.tasks.task import Deployment, Losses, Task

PATCH = 4


class Blobs:
    """Pictures made of their number: smooth noise of 16 x 16 pixels."""

    def __init__(self, split, count):
        self.split, self.count = split, count

    def __len__(self):
        return self.count

    def name(self, index):
        return f"{self.split}/{index}"

    def read(self, index):
        coarse = np.random.default_rng([index, len(self.split)]).integers(0, 256, (4, 4), np.uint8)
        return Image.fromarray(coarse).resize((16, 16), Image.Resampling.BICUBIC), None


def answers(images):
    """Mean and deviation of every patch, `(B, 1, rows, columns)` each."""
    mean = F.avg_pool2d(images, PATCH)
    return {"bright": mean, "varied": (F.avg_pool2d(images**2, PATCH) - mean**2).clamp_min(0).sqrt()}


def example_of(transform, picture, known):
    return {"image": transform(picture)}


class DenseNetwork(nn.Module):
    """Tokens of a transformer, each mapped to two numbers."""

    def __init__(self, backbone, image_size):
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(backbone.embed_dim, 2)

    def forward(self, images):
        rows = images.shape[-2] // PATCH
        tokens = self.backbone.forward_features(images)[:, self.backbone.num_prefix_tokens :]
        bright, varied = self.head(tokens).mT.unflatten(-1, (rows, -1)).unsqueeze(2).unbind(1)
        return {"bright": bright, "varied": varied}


class MedianError:
    """The median of all absolute errors: it needs them all."""

    def __init__(self):
        self.errors = []

    def update(self, outputs, batch):
        wanted = answers(batch["image"])
        self.errors += [(outputs[name] - wanted[name]).abs().flatten().cpu() for name in wanted]

    def merge(self, other):
        self.errors += other.errors

    def result(self):
        if not self.errors:
            raise ValueError("there was nothing to evaluate on")
        errors = torch.cat(self.errors).sort().values
        return [
            Metric("median_error", float(errors[len(errors) // 2]), "shades", higher_is_better=False),
            Metric("largest_error", float(errors[-1]), "shades", higher_is_better=False),
        ]


@dataclass(frozen=True)
class DensePrediction:
    name: str
    bright: float
    error: str | None = None

    def line(self):
        return f"{self.name}: brightness {self.bright:.2f}"

    def to_json(self):
        return {"name": self.name, "bright": self.bright}

    def draw(self, picture):
        return picture.convert("RGB")


@dataclass(frozen=True)
class BlobConfig(PictureConfig):
    root: str | None = None
    count: int = 64


@dataclass(frozen=True)
class ProofConfig:
    model: NetworkConfig
    data: BlobConfig = field(default_factory=BlobConfig)


@dataclass(frozen=True)
class ProofOptions:
    scale: float = 1.0


PLAIN = VariationConfig(crop_scale=None, color_jitter=0.0, auto_augment=None, erasing=0.0)


class Transform:
    def __init__(self, transform):
        self.transform = transform

    def __call__(self, picture, known):
        return {"image": self.transform(picture)}


class Proof(Task):
    Config = ProofConfig
    PredictConfig = ProofOptions

    def read_facts(self):
        return {"patch": PATCH}

    def build_network(self, training=False):
        data = self.config.data
        if not training:
            return DenseNetwork(make_network(self.config.model, 0, data.channels, self.facts), data.image_size)
        backbone, self.original = start_network(self.config.model, 0, data.channels, self.facts, [])
        return DenseNetwork(backbone, data.image_size)

    def loader(self, split, batch_size, seed=None, shard=Shard(), parts=1, workers=0):  # noqa: B008
        data = self.config.data
        source = Blobs(split, data.count if split == "train" else data.count // 2)
        transform = Transform(eval_transform(data) if seed is None else train_transform(data, PLAIN))
        pictures = Pictures(source, transform, data.channels, seed)
        return PictureLoader(pictures, EpochBatches(len(source), batch_size, seed, shard, parts), workers)

    def losses(self, network, batch):
        outputs, wanted = network(batch["image"]), answers(batch["image"])
        parts = {name: F.mse_loss(outputs[name].float(), wanted[name]) for name in wanted}
        return Losses(sum(parts.values()), parts)

    def meter(self):
        return MedianError()

    def agreement(self, outputs, others, batch):
        return ((outputs["bright"] - others["bright"]).abs().flatten(1) < 0.1).float().mean(1)

    def predictor(self, network, options=None):
        data, scale = self.config.data, (options or ProofOptions()).scale

        def interpret(outputs, seen):
            levels = (scale * outputs["bright"].mean((1, 2, 3))).tolist()
            return [DensePrediction(picture.name, level) for picture, level in zip(seen, levels, strict=True)]

        return PicturePredictor(network, eval_transform(data), interpret, data.channels)

    def deployment(self):
        data = self.config.data
        return Deployment(data.example(), data.preprocessing(), facts=dict(self.facts))
