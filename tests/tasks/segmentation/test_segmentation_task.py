"""Segmentation behind the task interface: facts, windows, agreement; masks that stop a training before it starts."""

import pytest
import torch
from mask_pictures import mask_recipe, write_masks
from PIL import Image
from torch import nn

from castling.settings import with_overrides
from castling.training import parse_recipe


def make_task(root, *overrides, facts=None):
    return parse_recipe(with_overrides(mask_recipe(root), overrides)).make_task(facts)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_masks(tmp_path_factory.mktemp("masks") / "shapes", num_train=8, num_val=4, size=(72, 48))


class Column(nn.Module):
    """Scores that depend on a pixel's place in what the network is shown: windows differ from the whole."""

    def __init__(self):
        super().__init__()
        self.shown = []
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, images):
        self.shown.append(tuple(images.shape[-2:]))
        sizes = "dim: 32, fpn_dim: 16, queries: 5, layers: 1, encoder_layers: 1, ffn_dim: 32, heads: 2, points: 64"

    task = make_task(root, f"segmenter={{decoder: {decoder}, {sizes}}}")
    network = task.build_network(training=True).train()
    task.losses(network, next(iter(task.loader("train", 2, seed=0)))).total.backward()
    batch = next(iter(task.loader("val", 2)))
    assert task.forward(network.eval(), batch).shape == (2, 3, 16, 24)


def test_a_wrong_mask_stops_training_before_it_starts(tmp_path):
    root = write_masks(tmp_path / "shapes", num_train=4, num_val=1)
    Image.new("L", (64, 64), 77).save(root / "annotations" / "train" / "000.png")
    with pytest.raises(ValueError, match="77"):
        make_task(root).build_network(training=True)
