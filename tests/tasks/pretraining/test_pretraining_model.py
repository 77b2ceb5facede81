"""The masked autoencoder: nothing of hidden patches reaches the encoder, and what is seen is seen as ever."""

import pytest
import timm
import torch
import torch.nn.functional as F

from castling import AttentionConfig, castle
from castling.measure.quadratic import quadratic_tensors
from castling.models.input_size import at_size
from castling.tasks.pretraining.decoder import Decoder, DecoderConfig, sine_positions
from castling.tasks.pretraining.model import MaskedAutoencoder
from castling.tasks.pretraining.patches import Masked, draw_places

NAME = "castling_deit_tiny_patch16_224"
SIZES = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 3, "num_heads": 2}
SMALL = DecoderConfig(16, 1, 2)
BACKBONES = {
    "castling": {},
    "on the grid": {"attention": AttentionConfig(local_conv="grid", local_conv_size=3)},
    "two prefix tokens": {"distilled": True},
    "no class token": {"class_token": False, "global_pool": "avg"},
    "softmax": {"kernel": "softmax"},
    "timm": {"name": "vit_tiny_patch16_224"},
}


def make(name=NAME, **options):
    vit = timm.create_model(name, num_classes=0, **{**SIZES, **options})
    for parameter in vit.parameters():  # convolutions begin small: all shall matter
        torch.nn.init.normal_(parameter, std=0.3)
    return MaskedAutoencoder(vit, SMALL).eval()


def choose(batch=2, num_visible=4, num_places=16):
    return torch.stack([draw_places(Masked(num_places, num_visible)) for _ in range(batch)])


def pixels_of(visible, side=32, patch=8):
    """Whether each pixel lies in a patch that is seen, `(B, 1, H, W)`."""
    seen = torch.zeros(len(visible), (side // patch) ** 2).scatter(1, visible, 1.0)
    return F.interpolate(seen.reshape(-1, 1, side // patch, side // patch), scale_factor=patch).bool()


@pytest.mark.parametrize("options", BACKBONES.values(), ids=BACKBONES)
def test_hidden_pixels_change_nothing_and_seen_ones_do(options):
    network, visible = make(**options), choose()
    images, others = torch.randn(2, 3, 32, 32), 100 * torch.randn(2, 3, 32, 32)
    seen = pixels_of(visible)
    hidden_changed, seen_changed = torch.where(seen, images, others), torch.where(seen, others, images)
    encoded = network.encode(images, visible)
    assert encoded.shape == (2, network.backbone.num_prefix_tokens + 4, 16)
    assert torch.equal(network.encode(hidden_changed, visible), encoded)
    assert not torch.allclose(network.encode(seen_changed, visible), encoded)
    drawn = network(images, visible)["patches"]
    assert torch.equal(network(hidden_changed, visible)["patches"], drawn)
    castled = castle(network) if options.get("name") is None else network
    assert torch.equal(castled.encode(hidden_changed, visible), castled.encode(images, visible))


def test_no_gradient_reaches_hidden_pixels():
    network, visible = make(), choose()
    images = torch.randn(2, 3, 32, 32, requires_grad=True)
    network(images, visible)["patches"].square().sum().backward()
    seen = pixels_of(visible).expand_as(images)
    assert not images.grad[~seen].any()
    assert images.grad[seen].abs().min() > 0


@pytest.mark.parametrize("options", BACKBONES.values(), ids=BACKBONES)
def test_all_patches_seen_is_the_network_itself(options):
    network, images = make(**options), torch.randn(2, 3, 32, 32)
    everywhere = torch.arange(16).expand(2, -1)
    torch.testing.assert_close(network.encode(images, everywhere), network.encode(images))
    vit = network.backbone
    wanted = vit.fc_norm(vit.forward_features(images))
    torch.testing.assert_close(network.encode(images), wanted)
    torch.testing.assert_close(network(images)["features"], wanted[:, vit.num_prefix_tokens :])


def on_zeros(tokens, weight, visible, grid, prefix):
    """A depthwise convolution on a full grid that was filled by hand, prefix tokens apart."""
    full = torch.zeros(len(tokens), grid[0] * grid[1], tokens.shape[-1])
    for image, places in enumerate(visible.tolist()):
        for number, place in enumerate(places):
            full[image, place] = tokens[image, prefix + number]
    maps = full.reshape(len(tokens), *grid, -1).permute(0, 3, 1, 2)
    padding = tuple(side // 2 for side in weight.shape[-2:])
    maps = F.conv2d(maps, weight, padding=padding, groups=len(weight)).flatten(2).mT
    return torch.stack([one[places] for one, places in zip(maps, visible, strict=True)])


def slow_encoder(network, images, visible):
    """The same by hand, block by block: attention among the tokens that are seen, convolutions on grids with zeros."""
    vit = network.backbone
    tokens = vit.patch_embed.proj(images).flatten(2).mT + vit.pos_embed[:, 1:]
    seen = torch.stack([one[places] for one, places in zip(tokens, visible, strict=True)])
    x = torch.cat([(vit.cls_token + vit.pos_embed[:, :1]).expand(len(images), -1, -1), seen], dim=1)
    for block in vit.blocks:
        attn, hosted = block.attn, block.norm1(x)
        q, k, v = attn.qkv(hosted).unflatten(-1, (3, 2, -1)).unbind(2)
        mixed = CastlingWithoutConvolution(attn)(q, k, v)
        sequence = torch.cat([torch.zeros(len(x), 1, dtype=torch.int64), visible + 1], dim=1)
        weight = attn.local_conv.weight.repeat_interleave(attn.head_dim, 0).unsqueeze(-2)
        local = on_zeros(v.flatten(2), weight, sequence, (1, 17), prefix=0)
        x = x + attn.proj(mixed.flatten(2) + local)
        hidden = block.mlp.fc1(block.norm2(x))
        patches = on_zeros(hidden, block.mlp.conv.weight, visible, (4, 4), prefix=1)
        x = x + block.mlp.fc2(F.gelu(torch.cat([hidden[:, :1], patches], dim=1)))
    return vit.norm(x)


class CastlingWithoutConvolution:
    """What an attention makes of q, k and v, less its convolution."""

    def __init__(self, attn):
        self.attn = attn

    def __call__(self, q, k, v):
        conv, self.attn.local_conv = self.attn.local_conv, None
        try:
            return self.attn.mix(q, k, v)
        finally:
            self.attn.local_conv = conv


def test_the_encoder_is_what_a_grid_with_zeros_gives():
    network, visible, images = make(), choose(3, 5), torch.randn(3, 3, 32, 32)
    wanted = slow_encoder(network, images, visible)
    torch.testing.assert_close(network.encode(images, visible), wanted, atol=1e-4, rtol=1e-4)


def test_whole_pictures_are_seen_whole_after_parts():
    network, images = make(), torch.randn(2, 3, 32, 32)
    wanted = network(images)["features"]
    network(images, choose())
    assert torch.equal(network(images)["features"], wanted)


def test_the_order_of_visible_patches_does_not_matter():
    network, visible, images = make(), choose(1), torch.randn(1, 3, 32, 32)
    turned = network(images, visible.flip(1))["patches"]
    torch.testing.assert_close(turned, network(images, visible)["patches"], atol=1e-4, rtol=1e-4)


def test_pictures_need_not_be_square():
    network = make()
    drawn = network(torch.randn(2, 3, 16, 48), choose(2, 3, 12))["patches"]
    assert drawn.shape == (2, 12, 192)


def test_every_parameter_learns():
    for options in BACKBONES.values():
        network = make(**options).train()
        network(torch.randn(2, 3, 32, 32), choose())["patches"].square().sum().backward()
        idle = [name for name, value in network.named_parameters() if value.grad is None or not value.grad.any()]
        assert idle == []  # several processes would wait for them


def test_castled_pretraining_makes_no_quadratic_tensor():
    network = castle(make(img_size=256, depth=1))
    images, visible = torch.randn(1, 3, 256, 256), choose(1, 256, 1024)
    assert not quadratic_tensors(lambda: network(images), 1000)
    assert not quadratic_tensors(lambda: network(images, visible)["patches"].sum().backward(), 250)


def test_positions_start_as_sines_and_class_tokens_keep_theirs():
    network = make()
    before = network.backbone.pos_embed.clone()
    network.start_positions()
    assert torch.equal(network.backbone.pos_embed[:, :1], before[:, :1])
    torch.testing.assert_close(network.backbone.pos_embed[0, 1:], sine_positions((4, 4), 16))
    assert network.backbone.pos_embed.requires_grad
    sines = sine_positions((4, 6), 16)
    assert len({tuple(row) for row in sines.tolist()}) == 24
    assert torch.equal(sine_positions((8, 6), 16)[:24], sines)  # places of a larger grid are the same


def test_another_size_resamples_positions():
    network = at_size(make(), 64)
    assert network.backbone.pos_embed.shape == (1, 65, 16)
    assert network(torch.randn(1, 3, 64, 64), choose(1, 16, 64))["patches"].shape == (1, 64, 192)


def test_the_decoder_knows_hidden_places_by_their_position_alone():
    decoder = Decoder(SMALL, encoder_dim=8, patch_dim=12, num_prefix_tokens=0).eval()
    with torch.no_grad():
        decoder.mask_token.fill_(float("nan"))
        drawn = decoder(torch.randn(1, 6, 8), torch.arange(6)[None], (2, 3))
        assert drawn.isfinite().all()  # nothing is hidden
        assert not decoder(torch.randn(1, 5, 8), torch.arange(5)[None], (2, 3)).isfinite().all()


def test_decay_leaves_positions_and_tokens_alone():
    network = make(distilled=True)
    names = network.no_weight_decay() & set(dict(network.named_parameters()))
    assert names == {"backbone.pos_embed", "backbone.cls_token", "backbone.dist_token", "decoder.mask_token"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dim": 10}, "dim must be a positive multiple of 4; got 10"),
        ({"dim": 16, "num_heads": 3}, "num_heads must divide dim 16; got 3"),
        ({"depth": 0}, "depth and mlp_ratio must be positive; got 0"),
    ],
)
def test_bad_decoders_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        DecoderConfig(**settings)


def test_other_networks_are_refused():
    with pytest.raises(ValueError, match=r"tokens stay one a patch, such as castling_deit_\*.*got .*Lev"):
        MaskedAutoencoder(timm.create_model("castling_levit_128", num_classes=0), SMALL)
    with pytest.raises(ValueError, match="width that 4 divides; got 6"):
        sine_positions((2, 2), 6)
