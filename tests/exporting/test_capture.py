import logging

import pytest
import timm
import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

from castling.exporting import ExportFailed
from castling.exporting import capture as capture_module
from castling.exporting.capture import capture

IMAGES = torch.zeros(1, 3, 32, 32)


class Network(nn.Module):
    """A network of one function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, images):
        return self.function(images)


def test_a_network_that_refuses_other_sizes_is_free_in_the_batch(caplog):
    caplog.set_level(logging.INFO, logger=capture_module.__name__)
    model = timm.create_model("deit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=32, depth=1, num_heads=2)
    assert capture(model, IMAGES).dynamic == ("batch",)
    assert "batch and height and width fixed: it refuses an input of (2, 3, 48, 56): AssertionError" in caplog.text


def test_a_size_that_the_network_decides_by_is_fixed(caplog):
    caplog.set_level(logging.INFO, logger=capture_module.__name__)
    scaled = Network(lambda images: images.mean((2, 3)) * int(images.shape[2]))
    assert capture(scaled, IMAGES).dynamic == ("batch",)
    assert "the network decides by them" in caplog.text
    one = Network(lambda images: images.reshape(1, -1) if len(images) == 1 else images.reshape(2, -1))
    assert capture(one, IMAGES).dynamic == ()


def test_a_size_that_torch_says_is_the_only_legal_one_is_fixed(monkeypatch):
    export = torch.export.export

    def strict_about_sides(model, inputs, dynamic_shapes, strict):
        if dynamic_shapes and 2 in dynamic_shapes[0]:
            raise ConstraintViolationError("height must be 32")
        return export(model, inputs, dynamic_shapes=dynamic_shapes, strict=strict)

    monkeypatch.setattr(torch.export, "export", strict_about_sides)
    assert capture(nn.Conv2d(3, 4, 3), IMAGES).dynamic == ("batch",)


def test_a_bug_that_shows_while_exporting_is_no_static_file():
    def buggy(images):
        if torch.compiler.is_exporting() and not isinstance(images.shape[0], int):
            raise TypeError("a bug")
        return images.mean((2, 3))

    with pytest.raises(ExportFailed, match="the network with free batch, height, width: TypeError: a bug"):
        capture(Network(buggy), IMAGES)
    assert capture(Network(buggy), IMAGES, dynamic=False).dynamic == ()


def test_a_network_that_decides_by_values_is_refused_with_the_reason():
    by_value = Network(lambda images: images if images.sum() > 0 else 2 * images)
    with pytest.raises(ExportFailed, match=r"cannot capture the network: .*data-dependent"):
        capture(by_value, IMAGES, dynamic=False)


def test_names_of_outputs(pair):
    assert capture(nn.Conv2d(3, 4, 3), IMAGES, dynamic=False).form == "output"
    assert capture(nn.Conv2d(3, 4, 3), IMAGES, dynamic=False, outputs=("depth",)).form == "depth"
    form = {"tokens": "tokens", "maps": ["maps.0", "maps.1"], "masks": None}
    assert capture(pair, IMAGES, dynamic=False).form == capture(pair, IMAGES).form == form
    with pytest.raises(ValueError, match=r"the network gives \['output'\]; got the names \['a', 'b'\]"):
        capture(nn.Conv2d(3, 4, 3), IMAGES, dynamic=False, outputs=("a", "b"))


def test_outputs_that_are_no_tensors_are_refused():
    with pytest.raises(ValueError, match="outputs must be tensors, mappings and sequences of them; got int"):
        capture(Network(lambda images: {"mean": images.mean(), "count": 3}), IMAGES, dynamic=False)
