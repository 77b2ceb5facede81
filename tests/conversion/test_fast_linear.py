import timm
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import castling
from castling.conversion import fast_linear as room
from castling.conversion.fast_linear import FastLinear, fast_linear


def watched(monkeypatch):
    """The calls of torch's own layer, whose products are MKL's."""
    calls = []
    linear = room.F.linear
    monkeypatch.setattr(room.F, "linear", lambda *given: calls.append(given) or linear(*given))
    return calls


def test_outputs_are_those_of_torch(monkeypatch):
    calls = watched(monkeypatch)
    for bias in (True, False):
        layer = nn.Linear(192, 256, bias=bias).requires_grad_(False)
        fast, x = fast_linear(layer), torch.randn(2, 100, 192)
        expected = layer(x)
        calls.clear()
        torch.testing.assert_close(fast(x), expected, atol=1e-5, rtol=0)
        assert calls == []
        torch.testing.assert_close(fast(x[:, ::2]), expected[:, ::2], atol=1e-5, rtol=0)  # strides, and fewer
        assert fast.weight is layer.weight


def test_few_products_and_whoever_looks_get_torchs_own(monkeypatch):
    fast = fast_linear(nn.Linear(192, 256).requires_grad_(False))
    calls = watched(monkeypatch)
    fast(torch.randn(1, 2, 192))
    with FlopCounterMode(display=False) as counter:
        fast(torch.randn(2, 100, 192))
    assert counter.get_total_flops() == 2 * 200 * 192 * 256
    fast(torch.randn(2, 100, 192, requires_grad=True)).sum().backward()
    assert len(calls) == 3


def test_optimize_makes_all_linear_layers_fast():
    model = castling.castle(timm.create_model("castling_deit_tiny_patch16_224", img_size=32)).eval()
    fast = castling.optimize(model)
    names = [name for name, layer in model.named_modules() if type(layer) is nn.Linear]
    assert [name for name, layer in fast.named_modules() if isinstance(layer, FastLinear)] == names
    assert fast.state_dict().keys() == model.state_dict().keys()
