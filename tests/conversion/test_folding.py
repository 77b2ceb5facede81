"""Folded networks: the same outputs, nothing left of what only training needs."""

import copy

import pytest
import timm
import torch
from timm.layers import DropPath
from torch import nn

import castling
from castling import castle, optimize
from castling.measure import count_macs

OPTIONS = {
    "castling_deit_tiny_patch16_224": {"depth": 2, "drop_rate": 0.1, "drop_path_rate": 0.1},
    "castling_levit_128": {"depth": (1, 1, 1), "drop_path_rate": 0.1},
    "castling_mvitv2_tiny": {"depths": (1, 1, 1, 1), "drop_path_rate": 0.1},
    "castling_lcnet_vit_small": {"drop_path_rate": 0.1},
    "castling_esnet_vit_small": {"ratios": ((0.5, 0.5), (0.5,), (0.5, 0.5)), "drop_rate": 0.1},
}


def trained(name, **options):
    """A castled model whose batch norms are not at their start."""
    model = castle(timm.create_model(name, num_classes=10, **OPTIONS[name], **options))
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            for tensor, low, high in (
                (module.running_mean, -0.2, 0.2),
                (module.running_var, 0.5, 2.0),
                (module.weight.data, 0.5, 1.5),
                (module.bias.data, -0.2, 0.2),
            ):
                tensor.uniform_(low, high)
    return model.eval()


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("shape", [(1, 3, 64, 96), (3, 3, 96, 64)], ids=["one", "several"])
def test_outputs_are_the_castled_models(name, shape):
    model = trained(name)
    folded, image = optimize(model), torch.randn(shape)
    with torch.no_grad():
        torch.testing.assert_close(folded(image), model(image), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", OPTIONS)
def test_nothing_that_only_training_needs_is_left(name):
    folded = optimize(trained(name))
    left = [module for module in folded.modules() if isinstance(module, (nn.Dropout, DropPath, nn.BatchNorm1d))]
    assert left == []
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.modules())
    assert not any(parameter.requires_grad for parameter in folded.parameters())
    assert not folded.training


@pytest.mark.parametrize("name", OPTIONS)
def test_macs_do_not_grow(name):
    model, image = trained(name), torch.randn(1, 3, 64, 64)
    assert count_macs(optimize(model), image).total <= count_macs(model, image).total


def test_the_model_itself_stays_unless_told():
    model = trained("castling_levit_128")
    before = copy.deepcopy(model.state_dict())
    optimize(model)
    assert model.state_dict().keys() == before.keys()
    assert optimize(model, inplace=True) is model
    assert model.state_dict().keys() != before.keys()


@pytest.mark.parametrize("name", OPTIONS)
def test_the_other_designs(name):
    design = {"kernel": "relu_e"} if "levit" not in name else {"kernel": "softmax"}
    model = trained(name, **design)
    image = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(optimize(model)(image), model(image), atol=1e-5, rtol=0)


def test_a_branch_is_refused():
    model = timm.create_model("castling_deit_tiny_patch16_224", depth=1)
    with pytest.raises(ValueError, match=r"1 auxiliary branches are left, such as that of 'blocks\.0\.attn'"):
        castling.optimize(model)


def test_a_plain_network_loses_its_batch_norms():
    plain = timm.create_model("resnet10t", num_classes=5).eval()
    image = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(optimize(plain)(image), plain(image), atol=1e-5, rtol=0)
