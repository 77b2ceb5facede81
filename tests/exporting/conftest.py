import pytest
import timm
import torch
from timm.models.mvitv2 import MultiScaleVitCfg
from torch import nn

import castling
from castling.models.mvitv2 import CastlingMultiScaleVit

FAMILIES = {
    "deit": (
        "castling_deit_tiny_patch16_224",
        {"img_size": 32, "patch_size": 4, "embed_dim": 32, "depth": 1, "num_heads": 2},
    ),
    "levit": ("castling_levit_128", {"embed_dim": (32, 48), "depth": (1, 1), "num_heads": (2, 2)}),
}


class Pair(nn.Module):
    """Gives a dict with a list in it: tensors of three shapes, and something that is not there."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.linear = nn.Linear(4, 5)

    def forward(self, images):
        grid = self.conv(images)
        tokens = self.linear(grid.flatten(2).transpose(1, 2))
        return {"tokens": tokens, "maps": [grid, grid.mean(1)], "masks": None}


@pytest.fixture(scope="session")
def tiny():
    """Makes a network of a family, with all that it consists of, once each."""

    def make(family, **kwargs):
        torch.manual_seed(0)
        if family == "mvitv2":  # a stage at full resolution and one that halves it
            return CastlingMultiScaleVit(MultiScaleVitCfg((1, 1), embed_dim=24), num_classes=10, **kwargs).eval()
        name, options = FAMILIES[family]
        return timm.create_model(name, num_classes=10, **options, **kwargs).eval()

    return make


@pytest.fixture
def deit(tiny):
    return castling.castle(tiny("deit"))


@pytest.fixture
def pair():
    torch.manual_seed(0)
    return Pair().eval()


@pytest.fixture
def images():
    return torch.randn(1, 3, 32, 32)
