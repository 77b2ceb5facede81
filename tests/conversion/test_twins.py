import pytest
import torch
from torch import nn

from castling import AttentionConfig, CastlingAttention, castle, convert
from castling.conversion import original_of, softmax_twin_of


@pytest.fixture
def x():
    return torch.randn(2, 30, 32)


@pytest.fixture
def host():
    return nn.TransformerEncoderLayer(32, 2, 64, batch_first=True).eval()


def trained(model):
    """The convolutions away from zero, where they start."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "local_conv" in name:
                parameter.normal_()
    return model


@pytest.mark.parametrize("aux", [True, False])
@pytest.mark.parametrize("twin", [original_of, softmax_twin_of])
def test_a_converted_network_gives_what_its_host_did(aux, twin, host, x):
    before = host(x)
    model = trained(convert(host, AttentionConfig(aux=aux), blend=1))
    for form in (model, castle(model)):
        out = form(x)
        assert not torch.allclose(out, before, atol=1e-3)
        torch.testing.assert_close(twin(form)(x), before, atol=1e-5, rtol=0)
        assert torch.equal(form(x), out)


def test_the_original_is_frozen_and_in_evaluation_mode(host):
    original = original_of(convert(host.train()))
    assert not any(module.training for module in original.modules())
    assert not any(parameter.requires_grad for parameter in original.parameters())
    assert all(parameter.requires_grad for parameter in host.parameters())


def test_the_twin_of_ours_keeps_weights_convolution_and_mode(x):
    model = trained(nn.Sequential(CastlingAttention(32, 2)))
    twin = softmax_twin_of(model)
    assert twin.training
    attention = twin[0]
    assert (attention.aux, attention.config.kernel, attention.config.local_conv) == (None, "softmax", "tokens")
    assert list(twin.state_dict()) == list(model.state_dict())
    assert torch.equal(attention.qkv.weight, model[0].qkv.weight)
    assert model[0].config.kernel == "linear_angular"
    assert not torch.allclose(twin(x), model(x), atol=1e-3)


def test_a_network_without_castling_attention_has_neither(host):
    with pytest.raises(ValueError, match="no castling attention in this TransformerEncoderLayer"):
        softmax_twin_of(host)
    with pytest.raises(ValueError, match="no converted attention"):
        original_of(nn.Sequential(CastlingAttention(32, 2)))
