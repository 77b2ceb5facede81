"""The form for inference gives the numbers of the form for training."""

import copy

import pytest
import torch

from castling import AttentionConfig, CastlingAttention, castle

CONFIGS = {
    "default": AttentionConfig(),
    "sum of values": AttentionConfig(value_term="sum"),
    "mean over tokens": AttentionConfig(reduction="mean", value_term="sum"),
    "no norm": AttentionConfig(output_norm="none"),
    "on the grid": AttentionConfig(local_conv="grid", local_conv_size=3),
    "no convolution": AttentionConfig(local_conv="none"),
    "root mean square": AttentionConfig(output_norm="rms", rotary=True),
    "norm of the branch": AttentionConfig(output_norm="aux"),
    "mean-centred keys": AttentionConfig(kernel="mean_centred"),
    "mean-centred keys, no norm, rotary": AttentionConfig(kernel="mean_centred", output_norm="none", rotary=True),
    "another kernel": AttentionConfig(kernel="relu_e"),
    "softmax": AttentionConfig.baseline(),
}


def pair(config, dim=32, num_heads=4):
    block = castle(CastlingAttention(dim, num_heads, config=config)).eval()
    folded = copy.deepcopy(block)
    folded.fold()
    return block, folded


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("batch", [1, 3])
def test_folded_equals_unfolded(name, batch):
    block, folded = pair(CONFIGS[name])
    x = torch.randn(batch, 36, 32)
    with torch.no_grad():
        torch.testing.assert_close(folded(x), block(x), atol=1e-6, rtol=1e-5)
    assert folded.folded == (name not in ("norm of the branch", "another kernel", "softmax"))


@pytest.mark.parametrize("name", ["zero", "equal", "single"])
def test_zero_equal_and_single_tokens(name):
    tokens = {"zero": torch.zeros(1, 9, 32), "equal": torch.ones(1, 9, 32), "single": torch.randn(1, 1, 32)}[name]
    block, folded = pair(AttentionConfig())
    for scale in (1e-15, 1.0, 1e15):
        with torch.no_grad():
            out = folded(scale * tokens)
            assert out.isfinite().all()
            torch.testing.assert_close(out, block(scale * tokens), atol=1e-5, rtol=1e-4)


def test_half_precision():
    block, folded = pair(AttentionConfig())
    x = torch.randn(2, 50, 32)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(folded(x), block(x), atol=2e-2, rtol=2e-2)


def test_gradients_of_the_input_still_flow():
    block, folded = pair(AttentionConfig())
    x = torch.randn(1, 20, 32, requires_grad=True)
    (expected,) = torch.autograd.grad(block(x).square().sum(), x)
    (found,) = torch.autograd.grad(folded(x).square().sum(), x)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_tokens_are_left_as_they_were():
    _, folded = pair(AttentionConfig())
    x = torch.randn(1, 20, 32)
    before = x.clone()
    with torch.no_grad():
        first, second = folded(x), folded(x)
    assert torch.equal(x, before)
    assert torch.equal(first, second)


def test_an_attention_with_its_branch_is_refused():
    with pytest.raises(ValueError, match="castle it first"):
        CastlingAttention(32, 4).fold()
