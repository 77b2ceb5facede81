"""Recipes of the paper's detectors: their training is PicoDet's, and overrides give the rows of docs/detection.md."""

from pathlib import Path

import pytest
import torch

from castling.attention import branches
from castling.attention.local_conv import TokenConv
from castling.attention.module import HeadMixer
from castling.recipes import find_recipe, recipe_names
from castling.training import load_recipe

NAMES = [name for name in recipe_names() if name.startswith("coco/")]
CASTLING = [name for name in NAMES if name.startswith("coco/lcnet_vit")]
PAGE = Path(__file__).parents[2] / "docs" / "detection.md"
COCO = {"labels": [str(number) for number in range(80)], "category_ids": list(range(80))}
PROCESSES = 8


def attentions_of(name, *overrides):
    """The recipe's kernel, its branches, and the sizes of its convolutions over tokens; built without memory."""
    recipe = load_recipe(name, overrides)
    with torch.device("meta"):
        network = recipe.make_task(COCO).build_network()
    kernels = {module.config.kernel for module in network.modules() if isinstance(module, HeadMixer)}
    taps = [module.weight.shape[-1] for module in network.modules() if isinstance(module, TokenConv)]
    return kernels, len(branches(network)), taps


@pytest.mark.parametrize("name", NAMES)
def test_the_training_is_picodets(name):
    recipe = load_recipe(name)
    training, side = recipe.training, recipe.settings.data.image_size
    assert training.batch_size == PROCESSES * 80
    assert (training.epochs, training.accumulate) == (300, 1)
    assert (training.optimizer.name, training.optimizer.momentum) == ("momentum", 0.9)
    assert training.optimizer.weight_decay == 4e-5
    rates = [training.learning_rate(epoch, 300) for epoch in (0, 1.6, 150.8, 300)]
    assert rates == pytest.approx([0.04, 0.4, 0.2, 0.0], abs=1e-6)
    assert training.ema_decay == 0.9998
    assert side == int(name.rpartition("_")[2])
    assert recipe.settings.data.sizes == tuple(range(side - 64, side + 65, 32))
    assert "torchrun --nproc-per-node 8" in find_recipe(name).read_text()


@pytest.mark.parametrize("kernel", ["linear_angular", "mean_centred", "softmax_kernel", "cosine", "relu_s", "relu_e"])
@pytest.mark.parametrize("name", CASTLING)
def test_rows_of_the_kernel_table_differ_in_the_kernel_alone(name, kernel):
    overrides = [] if kernel == "linear_angular" else [f"model.kernel={kernel}"]
    assert attentions_of(name, *overrides) == ({kernel}, 2, [9, 9])
    assert not overrides or f"`{kernel}`" in PAGE.read_text()


@pytest.mark.parametrize(
    ("override", "wanted"),
    [
        ("model.attention={kernel: softmax, output_norm: none, local_conv: none, aux: false}", ({"softmax"}, 0, [])),
        ("model.attention={local_conv: none, aux: false}", ({"linear_angular"}, 0, [])),
        ("model.attention={aux: false}", ({"linear_angular"}, 0, [9, 9])),
    ],
)
@pytest.mark.parametrize("name", CASTLING)
def test_rows_of_the_ablations_leave_out_what_they_say(name, override, wanted):
    key, _, value = override.partition("=")
    assert f"`{key}='{value}'`" in PAGE.read_text()
    assert attentions_of(name, override) == wanted
