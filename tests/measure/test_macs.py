from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from castling import AttentionConfig, CastlingAttention, castle
from castling.attention import attend
from castling.measure import count_macs, count_parameters


def test_fused_and_explicit_attention_count_alike():
    def explicit(q, k, v):
        return (q @ k.mT).softmax(-1) @ v

    q = torch.randn(2, 3, 50, 16)
    assert count_macs(F.scaled_dot_product_attention, q, q, q).total == 2 * 2 * 3 * 50 * 50 * 16
    assert count_macs(explicit, q, q, q).total == 2 * 2 * 3 * 50 * 50 * 16


@pytest.mark.parametrize("kernel", ["linear_angular", "cosine", "mean_centred", "relu_s"])
def test_linear_attention_costs_two_n_d_squared_per_head(kernel):
    q = torch.randn(2, 50, 3, 16)
    assert count_macs(partial(attend, kernel=kernel), q, q, q).total == 2 * 2 * 50 * 3 * 16 * 16


def test_by_module_adds_up_to_the_total():
    block = castle(CastlingAttention(64, 4))
    counted = count_macs(nn.Sequential(block, nn.Linear(64, 8)), torch.randn(1, 10, 64))
    assert counted.by_module["1"] == 10 * 64 * 8
    assert counted.by_module["0.qkv"] == 10 * 64 * 192
    assert counted.by_module["0.local_conv"] == 10 * 64 * 9
    assert counted.by_module["0"] + counted.by_module["1"] == counted.total
    own = 2 * 10 * 64 * 16  # the attention itself belongs to no submodule
    assert counted.by_module["0"] == own + sum(counted.by_module[f"0.{name}"] for name in ("qkv", "local_conv", "proj"))


def test_the_branch_counts_until_it_is_castled():
    block, x = CastlingAttention(64, 4), torch.randn(1, 100, 64)
    assert count_macs(block, x).total - count_macs(castle(block), x).total == 2 * 100 * 100 * 64


def test_norms_count_on_request():
    model, x = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.LayerNorm(6)), torch.randn(1, 3, 5, 6)
    assert count_macs(model, x).total == 12 * 30
    assert count_macs(model, x, norms=True).total == 12 * 30 + 7 * 120
    assert count_macs(model, x).total == 12 * 30


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_softmax_counts_on_request(device):
    q = torch.randn(2, 3, 50, 16, device=device)
    products, entries = 2 * 2 * 3 * 50 * 50 * 16, 2 * 3 * 50 * 50
    for attention in (F.scaled_dot_product_attention, lambda q, k, v: (q @ k.mT).softmax(-1) @ v):
        assert count_macs(attention, q, q, q).total == products
        assert count_macs(attention, q, q, q, softmax=True).total == products + entries


def test_counting_leaves_the_model_as_it_was():
    model = nn.Sequential(CastlingAttention(16, 2), nn.BatchNorm1d(20), nn.Dropout(0.5))
    model[2].eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    count_macs(model, torch.randn(2, 20, 16))
    assert [module.training for module in model] == [True, True, False]
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize("config", [AttentionConfig(aux=False), AttentionConfig.baseline()], ids=["linear", "softmax"])
def test_meta_tensors_count_without_computing(config):
    block = CastlingAttention(64, 4, config=config)
    expected = count_macs(block, torch.randn(1, 100, 64)).total
    assert count_macs(block.to("meta"), torch.randn(1, 100, 64, device="meta")).total == expected


def test_two_conventions_of_parameters():
    block = CastlingAttention(64, 4, qkv_bias=True)
    weights = 64 * 192 + 64 * 64 + 4 * 9
    assert count_parameters(block, "weights") == weights
    assert count_parameters(block) == weights + 192 + 64
    model = nn.Sequential(nn.LayerNorm(8), nn.Conv2d(3, 4, 3), nn.Linear(4, 2))
    assert count_parameters(model, "weights") == 3 * 4 * 9 + 8
    assert count_parameters(model) == 16 + 3 * 4 * 9 + 4 + 8 + 2


def test_a_shared_weight_counts_once():
    layer = nn.Linear(4, 4)
    assert count_parameters(nn.Sequential(layer, layer), "weights") == 16
    twin = nn.Linear(4, 4)
    twin.weight = layer.weight
    assert count_parameters(nn.Sequential(layer, twin), "weights") == 16


def test_unknown_convention_is_named():
    with pytest.raises(ValueError, match="unknown convention 'weight': did you mean 'weights'"):
        count_parameters(nn.Linear(2, 2), "weight")
