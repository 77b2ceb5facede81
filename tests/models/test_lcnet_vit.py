import pytest
import timm
import torch

from castling import AttentionConfig, castle, load_host_weights
from castling.measure import count_macs, count_parameters
from castling.models.lcnet_vit import from_timms_lcnet

SMALL = "castling_lcnet_vit_small"
CHANNELS = {  # 16, 32, 64, 128, 256 and 512 times 0.75, 1.5 and 2, in steps of 8
    "small": (16, 24, 48, 96, 192, 384),
    "medium": (24, 48, 96, 192, 384, 768),
    "large": (32, 64, 128, 256, 512, 1024),
}


def convolution(taps, width, out, places, squeeze=False):
    """Weights and MACs of one block of LCNet: depthwise, squeeze-and-excitation to a quarter, 1 x 1."""
    weights = taps**2 * width + width * out
    gate = width**2 // 2 if squeeze else 0
    return weights + gate, weights * places + gate


def transformer(dim, heads, places):
    """8 C^2 weights and 9 taps a head; the attention 2 N C d and the taps 9 N C."""
    weights = 8 * dim**2
    return weights + 9 * heads, places * (weights + 2 * dim * dim // heads + 9 * dim)


def counts(size, side, has_transformers):
    """All blocks up to stride 8, then the first of each stage with the others or a transformer."""
    c0, c1, c2, c3, c4, c5 = CHANNELS[size]
    places = {stride: (side // stride) ** 2 for stride in (2, 4, 8, 16, 32)}
    blocks = [
        (27 * c0, 27 * c0 * places[2]),
        convolution(3, c0, c1, places[2]),
        convolution(3, c1, c2, places[4]),
        convolution(3, c2, c2, places[4]),
        convolution(3, c2, c3, places[8]),
        convolution(3, c3, c3, places[8]),
        convolution(3, c3, c4, places[16]),
        convolution(5, c4, c5, places[32], squeeze=True),
    ]
    if has_transformers:
        blocks += [transformer(c4, 8, places[16]), transformer(c5, 16, places[32])]
    else:
        blocks += [convolution(5, c4, c4, places[16])] * 5 + [convolution(5, c5, c5, places[32], squeeze=True)]
    return tuple(map(sum, zip(*blocks, strict=True)))


LARGER = [pytest.param(size, 416, marks=pytest.mark.slow) for size in ("small", "medium", "large")]


@pytest.mark.parametrize(("size", "side"), [("small", 320), *LARGER])
def test_exact_counts_of_the_backbones(size, side):
    with torch.device("meta"):
        image = torch.empty(1, 3, side, side)
        hybrid = castle(timm.create_model(f"castling_lcnet_vit_{size}", features_only=True))
        plain = timm.create_model(f"castling_lcnet_vit_{size}", features_only=True, transformer=False)
    for model, has_transformers in ((hybrid, True), (plain, False)):
        found = count_parameters(model, "weights"), count_macs(model, image).total
        assert found == counts(size, side, has_transformers)


def test_softmax_adds_what_the_ablation_says():
    """With all maps of softmax in the place of 2 N C d; the 9 taps are gone with the convolution."""
    with torch.device("meta"):
        image = torch.empty(1, 3, 320, 320)
        softmax = timm.create_model(SMALL, features_only=True, attention=AttentionConfig.baseline())
    weights, macs = counts("small", 320, True)
    macs += sum(2 * n * dim * (n - dim // heads) - 9 * n * dim for n, dim, heads in ((400, 192, 8), (100, 384, 16)))
    assert count_macs(softmax, image).total == macs
    assert count_parameters(softmax, "weights") == weights - 9 * (8 + 16)


@pytest.fixture(params=["small-lcnet_075", "medium-lcnet_150"])
def pair(request):
    """Size of ours and timm's network of the same scale, whose batch norms are not at their start."""
    size, _, name = request.param.partition("-")
    host = timm.create_model(name, num_classes=10).eval()
    for key, value in host.state_dict().items():
        if key.endswith(("running_mean", "running_var", "bias")):
            value.uniform_(0.5, 1.5)
    return size, host


def test_plain_lcnet_is_timms(pair):
    size, host = pair
    ours = timm.create_model(f"castling_lcnet_vit_{size}", transformer=False, num_classes=10).eval()
    assert load_host_weights(ours, host.state_dict(), from_timms_lcnet) == []
    x = torch.randn(2, 3, 64, 96)
    torch.testing.assert_close(ours(x), host(x), atol=1e-5, rtol=1e-5)


def test_timms_weights_start_all_but_the_transformers():
    host, ours = timm.create_model("lcnet_075"), timm.create_model(SMALL)
    new = load_host_weights(ours, host.state_dict(), from_timms_lcnet)
    inside = ("stages.3.1.", "stages.4.1.")
    assert set(new) == {name for name in ours.state_dict() if name.startswith(inside)}
    assert torch.equal(ours.stages[4][0].se.conv_reduce.weight, host.blocks[5][0].se.conv_reduce.weight)
    assert torch.equal(ours.conv_head.weight, host.conv_head.weight)


def test_weights_that_do_not_fit_are_refused():
    ours = timm.create_model(SMALL)
    with pytest.raises(ValueError, match="have other shapes, such as"):
        load_host_weights(ours, timm.create_model("lcnet_050").state_dict(), from_timms_lcnet)
    without_stem = {name: value for name, value in ours.state_dict().items() if not name.startswith("stages.0")}
    with pytest.raises(ValueError, match=r"missing \['stages.0.0.bn.bias'"):
        load_host_weights(ours, without_stem)
    half = {name: value for name, value in ours.state_dict().items() if "attn.qkv" not in name}
    with pytest.raises(ValueError, match=r"missing \['stages.3.1.attn.qkv.bias'"):  # a transformer is new as a whole
        load_host_weights(ours, half)
