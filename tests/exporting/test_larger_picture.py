"""Files of one size, in which tokens are fewer than channels, are looked into at a larger picture."""

import pytest
import timm
import torch
from torch import nn

from castling.exporting import ExportFailed, export
from castling.exporting.larger_picture import telling_picture

pytestmark = pytest.mark.slow

FILES = ("model.onnx", "model.xml", "model.pt2")


class LinearTokens(nn.Module):
    """Attention without a softmax, K^T V first."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 24, 8, 8)
        self.qkv = nn.Linear(24, 72)

    def forward(self, images):
        return self.attend(*self.qkv(self.patches(images).flatten(2).transpose(1, 2)).chunk(3, dim=-1))  # (B, N, C)

    def attend(self, q, k, v):
        return q @ (k.transpose(1, 2) @ v)


class QuadraticInFiles(LinearTokens):
    """Linear in PyTorch; a graph of it has the same products in the other order, with a map of N x N."""

    def attend(self, q, k, v):
        return (q @ k.transpose(1, 2)) @ v if torch.compiler.is_exporting() else super().attend(q, k, v)


@pytest.mark.parametrize("name", FILES)
def test_a_map_that_only_the_file_makes_is_found_in_its_larger_twin(name, images, tmp_path):
    with pytest.raises(ExportFailed, match=r"makes an N x N tensor that the network in PyTorch does not: .*144, 144\)"):
        export(QuadraticInFiles(), tmp_path / name, images, dynamic=False, tolerance=1e-3)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", FILES)
def test_a_static_file_is_proved_linear(name, images, tmp_path):
    seen = export(LinearTokens(), tmp_path / name, images, dynamic=False)
    assert seen.quadratic == ()
    assert seen.num_tokens > 72  # channels; the file has 16
    assert seen.shapes == ((1, 3, 32, 32),)
    assert seen.obstacle == ""


def test_a_static_castled_network_is_proved_linear(deit, images, tmp_path):
    seen = export(deit, tmp_path / "model.pt2", images, dynamic=False)
    assert seen.quadratic == ()
    assert seen.num_tokens == 256 > max(max(value.shape) for value in deit.parameters())  # of 64 in the file


def test_a_static_softmax_network_is_seen_to_be_quadratic(tiny, tmp_path):
    seen = export(tiny("deit"), tmp_path / "model.pt2", torch.zeros(2, 3, 32, 32), dynamic=False, with_branch=True)
    assert any("-> (1, 2, 257, 257)" in line or "-> (2, 2, 257, 257)" in line for line in seen.quadratic)


def test_a_network_that_takes_no_larger_picture_says_so(tmp_path):
    model = timm.create_model("deit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=32, depth=1, num_heads=2)
    seen = export(model, tmp_path / "model.pt2", torch.zeros(1, 3, 32, 32))
    assert (seen.quadratic, seen.num_tokens) == (None, None)
    assert "the network refuses (1, 3, " in seen.obstacle
    assert "AssertionError: Input height" in seen.obstacle


def test_sides_grow_until_tokens_outnumber_channels_and_pixels():
    network = QuadraticInFiles()  # its widest layer has 72 channels; patches are 8 x 8
    assert telling_picture(network, torch.zeros(1, 3, 32, 32))[0].shape == (1, 3, 96, 96)
    picture, num_tokens = telling_picture(network, torch.zeros(1, 3, 128, 128))
    assert picture.shape == (1, 3, 128, 128)  # large enough as it is
    assert num_tokens == 255  # one of 256 may be a class token
    convolution = nn.Conv2d(3, 512, 3)  # sees no sequences: N is that of its last map
    assert telling_picture(convolution, torch.zeros(1, 3, 224, 224))[0].shape == (1, 3, 1120, 1120)
