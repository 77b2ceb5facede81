import math

import pytest
import torch
from torch import nn

from castling.measure import count_parameters
from castling.tasks.segmentation.pixel_decoder import EncoderFpn, EncoderLayer

DIM = 32


def make_decoder(**options):
    decoder = EncoderFpn((8, 12, 16, 20), **{"dim": DIM, "num_layers": 2, "num_heads": 4, "ffn_dim": 24, **options})
    for parameter in decoder.parameters():
        nn.init.normal_(parameter, std=0.2)
    return decoder.eval()


def make_maps(rows=16, columns=8, batch=2):
    widths = ((8, 8), (12, 4), (16, 2), (20, 1))
    return [torch.randn(batch, width, rows * scale // 8 * 2, columns * scale // 8 * 2) for width, scale in widths]


def sine_positions(rows, columns, dim):
    """DETR's embedding by hand: half of the channels say the row, half the column, from 0 to 2 pi."""
    table = torch.zeros(rows, columns, dim)
    for row in range(rows):
        for column in range(columns):
            angles = ((row + 1) / (rows + 1e-6) * 2 * math.pi, (column + 1) / (columns + 1e-6) * 2 * math.pi)
            for half, angle in enumerate(angles):
                for channel in range(dim // 2):
                    wave = angle / 10000 ** (2 * (channel // 2) / (dim // 2))
                    table[row, column, half * dim // 2 + channel] = math.cos(wave) if channel % 2 else math.sin(wave)
    return table.flatten(0, 1)


def slow_layer(layer, x, positions):
    """A layer of the encoder through torch's own attention with its map in memory."""
    dim, heads = x.shape[-1], layer.attn.num_heads
    torchs = nn.MultiheadAttention(dim, heads, batch_first=True)
    with torch.no_grad():
        torchs.in_proj_weight.copy_(torch.cat([layer.attn.qk.weight, layer.attn.v.weight]))
        torchs.in_proj_bias.copy_(torch.cat([layer.attn.qk.bias, layer.attn.v.bias]))
    torchs.out_proj = layer.attn.proj
    x = layer.norm1(x + torchs(x + positions, x + positions, x)[0])
    return layer.norm2(x + layer.mlp[2](layer.mlp[0](x).relu()))


def group_norm(x, norm):
    groups = x.unflatten(1, (norm.num_groups, -1)).flatten(2)
    mean, variance = groups.mean(-1, keepdim=True), groups.var(-1, keepdim=True, unbiased=False)
    normed = ((groups - mean) / (variance + norm.eps).sqrt()).reshape(x.shape)
    return normed * norm.weight[:, None, None] + norm.bias[:, None, None]


def test_positions_are_those_of_detr():
    found = make_decoder().positions((1, DIM, 3, 5), torch.device("cpu"), torch.float32)
    torch.testing.assert_close(found[0].flatten(1).T, sine_positions(3, 5, DIM), rtol=1e-4, atol=1e-4)


def test_a_layer_is_that_of_a_slow_encoder():
    layer, x, positions = EncoderLayer(DIM, 4, 24), torch.randn(2, 15, DIM), torch.randn(1, 15, DIM)
    torch.testing.assert_close(layer(x, positions), slow_layer(layer, x, positions), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_maps_are_those_of_a_slow_decoder():
    decoder, maps = make_decoder(), make_maps()
    rows, columns = maps[-1].shape[-2:]
    x = (
        torch.einsum("bchw,dc->bdhw", maps[-1], decoder.project.weight[:, :, 0, 0])
        + decoder.project.bias[:, None, None]
    )
    tokens, positions = x.flatten(2).mT, sine_positions(rows, columns, DIM)
    for layer in decoder.encoder:
        tokens = slow_layer(layer, tokens, positions)
    x = tokens.mT.reshape(x.shape)
    wanted = []
    for level, output in enumerate(decoder.outputs):
        if level:
            lateral, finer = decoder.laterals[level - 1], maps[-1 - level]
            x = x.repeat_interleave(2, 2).repeat_interleave(2, 3)
            x = x + group_norm(torch.einsum("bchw,dc->bdhw", finer, lateral[0].weight[:, :, 0, 0]), lateral[1])
            assert len(lateral) == 2  # no activation
        x = group_norm(output[0](x), output[1]).relu()
        wanted.append(x)
    found = decoder(maps)
    assert len(found.multi_scale_features) == 3
    for one, other in zip(found.multi_scale_features, wanted, strict=False):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found.mask_features, decoder.mask_features(wanted[-1]), rtol=1e-3, atol=1e-3)


def test_parameters_are_those_of_the_formula():
    """ARCHITECTURES 6: 11.08 M for four maps of 256 channels."""
    with torch.device("meta"):
        decoder = EncoderFpn((256,) * 4, dim=256, num_layers=6, num_heads=8, ffn_dim=2048)
    d, hidden = 256, 2048
    layer = 4 * (d * d + d) + 2 * d * hidden + hidden + d + 4 * d
    convs = (d * d + d) + 3 * (d * d + 2 * d) + 4 * (9 * d * d + 2 * d) + (9 * d * d + d)
    assert count_parameters(decoder) == 6 * layer + convs
    assert count_parameters(decoder) / 1e6 == pytest.approx(11.08, rel=0.003)


def test_a_batch_is_seen_picture_by_picture():
    decoder, maps = make_decoder(), make_maps(8, 16)
    together = decoder(maps).mask_features
    alone = torch.cat([decoder([x[[one]] for x in maps]).mask_features for one in range(2)])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)


def test_reference_points_are_those_of_transformers():
    modeling = pytest.importorskip("transformers.models.mask2former.modeling_mask2former")
    from castling.tasks.segmentation.mask2former import reference_points

    sizes, ratios = [(2, 3), (4, 6), (7, 5)], 0.5 + torch.rand(2, 3, 2) / 2
    wanted = modeling.Mask2FormerPixelDecoderEncoderOnly.get_reference_points(sizes, ratios, torch.device("cpu"))
    torch.testing.assert_close(reference_points(sizes, ratios, torch.device("cpu")), wanted)


def test_sizes_are_free_in_a_graph_with_deformable_attention():
    pytest.importorskip("transformers")
    from castling.tasks.segmentation.mask2former import reference_points

    class Points(nn.Module):
        def forward(self, x):
            return reference_points([x.shape[-2:]], x.new_ones(len(x), 1, 2), x.device)

    free = {2: torch.export.Dim.AUTO, 3: torch.export.Dim.AUTO}
    program = torch.export.export(Points(), (torch.zeros(1, 3, 4, 6),), dynamic_shapes=(free,), strict=False)
    assert program.module()(torch.zeros(1, 3, 5, 7)).shape == (1, 35, 1, 2)
