import pytest
import timm
import torch

from castling import castle
from castling.measure import count_macs, count_parameters
from castling.models.esnet_vit import DownsampleBlock, ShuffleBlock

# Channels of the stages, and hidden channels of their blocks: the tables' ratios in steps of 8.
HIDDEN = {
    "small": {96: (88, 48, 48), 192: (96, 120, 96, 120, 96, 96, 96), 384: (192, 192, 192)},
    "medium": {128: (112, 64, 128), 256: (160, 128, 192, 160, 160, 128, 160), 512: (512, 320, 384)},
    "large": {160: (144, 80, 160), 320: (200, 160, 240, 200, 200, 160, 200), 640: (640, 400, 480)},
}


def downsample(width, hidden, out, places):
    """A depthwise and a 1 x 1 branch, a 1 x 1 (at the full map), depthwise, gated one; then depthwise and 1 x 1."""
    half, early, gate = hidden // 2, width * hidden // 2, (hidden // 2) ** 2 // 2
    late = 9 * width + width * out // 2 + 9 * half + half * out // 2 + 9 * out + out**2
    return early + gate + late, early * 4 * places + gate + late * places


def shuffle(width, hidden, places):
    """1 x 1 of half the channels, depthwise, gate on both, 1 x 1 back to a half."""
    gate = hidden**2 // 2
    rest = width // 2 * hidden // 2 + 9 * hidden // 2 + hidden * width // 2
    return rest + gate, rest * places + gate


def transformer(dim, places):
    """8 C^2 weights, 5 x 5 on 2 C channels, 9 taps a head of 128 channels."""
    weights = 8 * dim**2 + 2 * dim * 25
    return weights + 9 * (dim // 128), places * (weights + 2 * dim * 128 + 9 * dim)


def counts(size, side, has_transformers):
    width, stride = 24, 4
    blocks = [(27 * 24, 27 * 24 * (side // 2) ** 2)]
    for out, (first, *others) in HIDDEN[size].items():
        stride *= 2
        places = (side // stride) ** 2
        blocks.append(downsample(width, first, out, places))
        if has_transformers and stride == 32:
            blocks += [transformer(out, places)] * 2
        else:
            blocks += [shuffle(out, hidden, places) for hidden in others]
        width = out
    return tuple(map(sum, zip(*blocks, strict=True)))


LARGER = [pytest.param(size, 416, marks=pytest.mark.slow) for size in ("small", "medium", "large")]


@pytest.mark.parametrize(("size", "side"), [("small", 320), *LARGER])
def test_exact_counts_of_the_backbones(size, side):
    with torch.device("meta"):
        image = torch.empty(1, 3, side, side)
        hybrid = castle(timm.create_model(f"castling_esnet_vit_{size}", features_only=True))
        plain = timm.create_model(f"castling_esnet_vit_{size}", features_only=True, transformer=False)
    for model, has_transformers in ((hybrid, True), (plain, False)):
        found = count_parameters(model, "weights"), count_macs(model, image).total
        assert found == counts(size, side, has_transformers)


def test_a_block_passes_half_of_its_channels_and_interleaves_the_rest():
    block, x = ShuffleBlock(16, 8).eval(), torch.randn(2, 16, 5, 7)
    out = block(x)
    assert torch.equal(out[:, ::2], x[:, :8])
    narrow = block.conv_in(x[:, 8:])
    both = torch.cat([narrow, block.conv_dw.bn(block.conv_dw.conv(narrow))], 1)
    gate = block.se.conv_expand(block.se.conv_reduce(both.mean((2, 3), keepdim=True)).relu())
    torch.testing.assert_close(out[:, 1::2], block.conv_out(both * (gate + 3).clamp(0, 6) / 6))


def test_depthwise_layers_of_the_branches_are_linear_and_the_last_is_not():
    block = DownsampleBlock(8, 16, 32).eval()
    x = torch.full((1, 8, 4, 4), -10.0)
    layers = {"first": block.first[0], "second": block.second[1], "join": block.join[0]}
    for layer in layers.values():
        torch.nn.init.ones_(layer.conv.weight)
    width = {name: layer.conv.in_channels for name, layer in layers.items()}
    lowest = {name: layer(x[:, :1].expand(-1, width[name], -1, -1)).min() for name, layer in layers.items()}
    assert lowest["first"] < -10
    assert lowest["second"] < -10
    assert lowest["join"] == 0  # hardswish
    assert block(x).shape == (1, 32, 2, 2)
