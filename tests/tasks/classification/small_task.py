"""A small classification task over a folder of pictures, and a network that shows what it was given."""

import torch
from torch import nn

from castling.tasks.classification.data import AugmentConfig
from castling.tasks.classification.task import Classification, ClassificationConfig
from castling.tasks.networks import NetworkConfig

TINY = {"img_size": 32, "patch_size": 4, "embed_dim": 32, "depth": 1, "num_heads": 2}
MODEL = NetworkConfig("castling_deit_tiny_patch16_224", options=TINY)
UNMIXED = AugmentConfig(mixup=0.0, cutmix=0.0)
CLASSES = ["cat", "dog", "emu"]


def make_task(data, facts=None, **settings):
    config = ClassificationConfig(**{"model": MODEL, "data": data, "augment": UNMIXED, **settings})
    return Classification(config, facts)


class Constant(nn.Module):
    """A network that keeps what it saw and gives the same logits for every picture."""

    def __init__(self, classes=3):
        super().__init__()
        self.logits, self.seen = nn.Parameter(torch.arange(float(classes)) ** 2), []

    def forward(self, x):
        self.seen.append(x)
        return self.logits.repeat(len(x), 1)
