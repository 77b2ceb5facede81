import math

import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

import castling
from castling.measure import count_parameters
from castling.measure.quadratic import quadratic_tensors
from castling.measure.shapes import shapes_only
from castling.models import load_host_weights
from castling.models.feature_pyramid import STRIDES, FeaturePyramid

SMALL = {"embed_dim": 32, "depth": 1, "num_heads": 2}


def make_vit(name="castling_deit_tiny_patch16_224", **options):
    return timm.create_model(name, **{**SMALL, "num_classes": 0, **options})


def layer_norm(x, norm):
    """Over the channels of each cell, by hand."""
    mean, variance = x.mean(1, keepdim=True), x.var(1, keepdim=True, unbiased=False)
    return (x - mean) / (variance + 1e-6).sqrt() * norm.weight[:, None, None] + norm.bias[:, None, None]


def doubled(x, deconv):
    """A 2 x 2 transposed convolution of stride 2: every cell becomes four, each a linear map of it."""
    batch, _, rows, columns = x.shape
    out = x.new_zeros(batch, deconv.out_channels, 2 * rows, 2 * columns)
    for i in range(2):
        for j in range(2):
            cells = torch.einsum("bchw,cd->bdhw", x, deconv.weight[:, :, i, j])
            out[:, :, i::2, j::2] = cells + deconv.bias[:, None, None]
    return out


def projected(x, layers):
    narrow, norm, mix, last = layers
    x = layer_norm(torch.einsum("bchw,dc->bdhw", x, narrow.weight[:, :, 0, 0]), norm)
    rows, columns = x.shape[-2:]
    padded = nn.functional.pad(x, (1, 1, 1, 1))
    total = sum(
        torch.einsum("bchw,dc->bdhw", padded[:, :, i : i + rows, j : j + columns], mix.weight[:, :, i, j])
        for i in range(3)
        for j in range(3)
    )
    return layer_norm(total, last)


@torch.no_grad()
def slow_pyramid(pyramid, images):
    height, width = images.shape[-2:]
    vit = pyramid.vit
    tokens = vit.forward_features(images)[:, vit.num_prefix_tokens :]
    grid = torch.stack(tokens.mT.split(width // 16, dim=2), dim=2)  # (B, C, rows, columns)
    assert grid.shape[-2:] == (height // 16, width // 16)
    finest, fine, same, coarse = (list(level) for level in pyramid.levels)
    first = nn.functional.gelu(layer_norm(doubled(grid, finest[0]), finest[1]))
    cells = grid.unflatten(3, (-1, 2)).unflatten(2, (-1, 2))
    return [
        projected(doubled(first, finest[3]), finest[4:]),
        projected(doubled(grid, fine[0]), fine[1:]),
        projected(grid, same),
        projected(cells.amax((3, 5)), coarse[1:]),
    ]


@pytest.mark.parametrize("options", [{}, {"kernel": "softmax"}, {"distilled": True}, {"class_token": False}])
def test_maps_are_those_of_a_slow_pyramid(options):
    if options.get("class_token") is False:
        options = {**options, "global_pool": "avg", "fc_norm": False}
    pyramid = FeaturePyramid(make_vit(**options), dim=12).eval()
    for parameter in pyramid.levels.parameters():
        nn.init.normal_(parameter, std=0.3)
    images = torch.randn(2, 3, 64, 96)
    found, wanted = pyramid(images), slow_pyramid(pyramid, images)
    assert [tuple(x.shape) for x in found] == [(2, 12, 64 // stride, 96 // stride) for stride in STRIDES]
    for x, y in zip(found, wanted, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("height", "width"), [(32, 32), (224, 224), (32, 160), (128, 64)])
@pytest.mark.parametrize("options", [{}, {"kernel": "softmax"}])
def test_any_size_that_32_divides(height, width, options):
    pyramid = FeaturePyramid(make_vit(**options), dim=8)
    maps = pyramid(torch.randn(1, 3, height, width))
    assert [tuple(x.shape) for x in maps] == [(1, 8, height // stride, width // stride) for stride in (4, 8, 16, 32)]
    assert pyramid.channels == (8, 8, 8, 8)
    assert pyramid.strides == (4, 8, 16, 32)


@pytest.mark.parametrize("size", ["tiny", "small", "base"])
def test_parameters_of_the_pyramid_are_those_of_the_formula(size):
    with shapes_only():
        pyramid = FeaturePyramid(timm.create_model(f"castling_deit_{size}_patch16_224", num_classes=0))
    c, d = {"tiny": 192, "small": 384, "base": 768}[size], 256
    deconvs = 2 * (4 * c * c // 2 + c // 2) + 2 * c // 2 + (4 * c // 2 * c // 4 + c // 4)
    projections = d * (c // 4 + c // 2 + c + c) + 4 * 9 * d * d + 8 * 2 * d
    assert count_parameters(pyramid.levels) == deconvs + projections
    if size == "base":
        assert math.isclose(deconvs + projections, 5.55e6, rel_tol=0.003)  # ARCHITECTURES 6


def test_a_classifiers_weights_fit_into_its_vit():
    classifier = make_vit(num_classes=5)
    weights = {name: value for name, value in classifier.state_dict().items() if not name.startswith("head.")}
    pyramid = FeaturePyramid(make_vit(), dim=8).eval()
    pyramid.vit.load_state_dict(weights)
    images = torch.randn(1, 3, 224, 224)
    torch.testing.assert_close(pyramid.vit.forward_features(images), classifier.eval().forward_features(images))


def test_timms_own_vit_gives_weights_and_is_a_backbone():
    host = VisionTransformer(**SMALL, num_classes=0, dynamic_img_size=True)
    pyramid = FeaturePyramid(make_vit(), dim=8)
    new = load_host_weights(pyramid.vit, host.state_dict())
    assert all(name.endswith(("local_conv.weight", "mlp.conv.weight")) for name in new)
    assert FeaturePyramid(host, dim=8)(torch.randn(1, 3, 96, 64))[0].shape == (1, 8, 24, 16)


def test_every_parameter_learns():
    pyramid = FeaturePyramid(make_vit(), dim=8)
    sum(x.square().mul(torch.randn_like(x)).sum() for x in pyramid(torch.randn(2, 3, 32, 64))).backward()
    assert [name for name, parameter in pyramid.named_parameters() if parameter.grad is None] == []


def test_castled_it_makes_no_map_of_tokens_by_tokens():
    pyramid = FeaturePyramid(make_vit(), dim=8).eval()
    images = torch.randn(1, 3, 256, 256)  # 256 tokens, more than any width
    assert quadratic_tensors(lambda: pyramid(images), 256)
    assert quadratic_tensors(lambda: castling.castle(pyramid)(images), 256) == []


@pytest.mark.parametrize(
    ("vit", "message"),
    [
        (lambda: make_vit(patch_size=8), "patches of 16 x 16; got 8 x 8"),
        (lambda: make_vit(num_classes=5), "num_classes=0; got 5"),
        (lambda: VisionTransformer(**SMALL, num_classes=0), "dynamic_img_size=True"),
        (lambda: make_vit(embed_dim=30, num_heads=3), "4 must divide it; got 30"),
        (lambda: nn.Linear(2, 2), "VisionTransformer; got Linear"),
    ],
)
def test_a_network_that_does_not_fit_is_refused(vit, message):
    with pytest.raises(ValueError, match=message):
        FeaturePyramid(vit())


@pytest.mark.parametrize(("size", "nearest"), [((48, 64), "64 x 64"), ((32, 70), "32 x 96")])
def test_other_sides_are_refused(size, nearest):
    with pytest.raises(ValueError, match=f"an image of {size[0]} x {size[1]} .* stride of 32.* {nearest}"):
        FeaturePyramid(make_vit(), dim=8)(torch.zeros(1, 3, *size))


@pytest.mark.slow
def test_the_pyramid_compiles_into_one_graph(fresh_compiler):
    pyramid, images = FeaturePyramid(make_vit(), dim=8), torch.randn(2, 3, 96, 64)
    compiled = torch.compile(pyramid, fullgraph=True, backend="eager")
    for x, y in zip(compiled(images), pyramid(images), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)
