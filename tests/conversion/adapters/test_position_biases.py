"""Position biases of a host live on in the auxiliary branch, and end with it."""

import pytest
import torch
from hosts import make_host

from castling import AttentionConfig, castle, castled
from castling.conversion.replace import convert

BIASES = {
    "timm levit": ("attention_biases",),
    "timm levit, convolutional": ("attention_biases",),
    "timm tinyvit": ("attention_biases",),
    "timm beit": ("relative_position_bias_table",),
    "timm mvitv2": ("rel_pos_h", "rel_pos_w"),
    "hf sam": ("rel_pos_h", "rel_pos_w"),
}
OPEN, CLOSED = 0.0, 1.0


def converted(name, threshold):
    """A host at blend 1 with its branch, and its biases by name."""
    host = make_host(name)
    convert(host.model, AttentionConfig(aux=True, threshold=threshold), blend=1)
    found = {key: value for key, value in host.model.named_parameters() if key.endswith(BIASES[name])}
    assert found
    return host, found


def effect(host, model, biases):
    """How much the output changes when each bias changes by itself."""
    changes = {}
    with torch.no_grad():
        before = host(model)
        for name, bias in biases.items():
            saved = bias.clone()
            bias.add_(torch.randn_like(bias))
            changes[name] = (host(model) - before).abs().max().item()
            bias.copy_(saved)
    return changes


@pytest.mark.parametrize("name", BIASES)
def test_an_open_mask_lets_every_bias_in_until_castled(name):
    host, biases = converted(name, OPEN)
    assert min(effect(host, host.model, biases).values()) > 1e-4
    with castled(host.model):
        assert set(effect(host, host.model, biases).values()) == {0.0}
    fast = castle(host.model)
    assert set(effect(host, fast, {key: fast.get_parameter(key) for key in biases}).values()) == {0.0}


@pytest.mark.parametrize("name", BIASES)
def test_biases_are_trained_while_the_branch_is_there(name):
    host, biases = converted(name, OPEN)
    host().square().sum().backward()
    assert [key for key, bias in biases.items() if bias.grad is None or not bias.grad.any()] == []
    castle(host.model, inplace=True).zero_grad()
    host().square().sum().backward()
    assert [key for key, bias in biases.items() if bias.grad is not None] == []


@pytest.mark.parametrize("name", BIASES)
def test_a_closed_mask_lets_no_bias_in(name):
    host, biases = converted(name, CLOSED)
    assert set(effect(host, host.model, biases).values()) == {0.0}
    assert torch.equal(host(castle(host.model)), host())
