"""What is measured of attentions, against maps written out and tokens whose answer is known."""

import math

import pytest
import timm
import torch

from castling import AttentionConfig, CastlingAttention
from castling.attention import KERNELS
from castling.attention.reference import ATTENTIONS, cosine_similarity, softmax_weights
from castling.measure.attention_facts import Tokens, attention_facts, attention_map, network_facts, record_tokens


def block(**config):
    return CastlingAttention(32, 2, config=AttentionConfig(aux=False, **config)).double()


def tokens(num_tokens=9):
    return torch.randn(3, 2, num_tokens, 2, 16, dtype=torch.float64).unbind(0)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_map_times_values_is_the_attention(kernel):
    q, k, v = tokens()
    found = torch.einsum("bhnm,bmhd->bnhd", attention_map(block(kernel=kernel), q, k), v)
    torch.testing.assert_close(found, ATTENTIONS[kernel](q, k, v))


def test_maps_are_those_of_the_equations():
    q, k, _ = tokens()
    by_head = q.transpose(1, 2), k.transpose(1, 2)
    linear = torch.eye(9, dtype=torch.float64) / 2 + cosine_similarity(*by_head) / math.pi
    torch.testing.assert_close(attention_map(block(), q, k), linear)
    torch.testing.assert_close(attention_map(block(kernel="softmax"), q, k), softmax_weights(*by_head))


def test_facts_of_tokens_whose_answer_is_known():
    softmax = block(kernel="softmax", output_norm="none")
    q, _, v = tokens()
    equal_keys = torch.zeros_like(q)
    facts = attention_facts(softmax, Tokens(q, equal_keys, v))  # every token gets the mean of all values
    assert facts.constant == pytest.approx(1)
    assert facts.rank == pytest.approx(1)
    assert facts.entropy == pytest.approx(1)
    assert facts.own == pytest.approx(1 / 9)
    far = 1e3 * torch.eye(16, dtype=torch.float64)[:9, None].expand(2, -1, 2, -1)
    facts = attention_facts(softmax, Tokens(far, far, far))  # every token gets itself, and all are orthogonal
    assert facts.entropy == pytest.approx(0, abs=1e-9)
    assert facts.own == pytest.approx(1)
    assert facts.rank == pytest.approx(9)
    assert facts.constant == pytest.approx(1 / 9)


def test_tokens_are_those_of_the_kernel_and_the_network_stays_as_it_is():
    attention, x = block(rotary=True), torch.randn(2, 12, 32, dtype=torch.float64)
    before = attention(x, grid=(3, 4))
    with record_tokens(attention) as seen:
        assert torch.equal(attention(x, grid=(3, 4)), before)
    q, k, v = attention.qkv(x).unflatten(-1, (3, 2, 16)).unbind(2)
    placed = attention.placed(q, k, (3, 4))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(seen[""][:3], (*placed, v), strict=True))
    assert seen[""].grid == (3, 4)
    assert "mix" not in vars(attention)


@pytest.mark.parametrize("name", ["castling_deit_tiny_patch16_224", "castling_levit_128"])
def test_every_attention_of_a_network_is_measured(name):
    depth = {"depth": 2} if "deit" in name else {}
    model = timm.create_model(name, **depth)
    found = network_facts(model, torch.randn(2, 3, 64, 64))
    assert len(found) == (2 if depth else 12)
    assert all(0 <= facts.entropy <= 1 and facts.rank >= 1 for facts in found.values())
    assert model.training
