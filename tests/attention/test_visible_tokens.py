"""Tokens at some places of a grid: convolutions see zeros at all others, as a loop over places says."""

import copy
import pickle

import pytest
import timm
import torch

from castling import AttentionConfig, CastlingAttention, castle, optimize
from castling.attention import GridConv, Mlp, TokenConv
from castling.attention.grid import GridNote, depthwise_on_grid, gather_tokens, resolve_grid, spread_tokens

GRID = (4, 6)


def choose(batch=3, num_visible=7, grid=GRID):
    """Places in any order, others in every image."""
    return torch.stack([torch.randperm(grid[0] * grid[1])[:num_visible] for _ in range(batch)])


def convolved(tokens, weight, grid, visible):
    """The convolution by its definition: every visible token sums up the visible ones around it."""
    kh, kw = weight.shape[-2:]
    out = torch.zeros_like(tokens)
    for image, places in enumerate(visible.tolist()):
        for here, place in enumerate(places):
            for there, other in enumerate(places):
                down = other // grid[1] - place // grid[1] + kh // 2
                right = other % grid[1] - place % grid[1] + kw // 2
                if 0 <= down < kh and 0 <= right < kw:
                    out[image, here] += weight[:, 0, down, right] * tokens[image, there]
    return out


def test_tokens_come_back_from_their_places():
    tokens, visible = torch.randn(3, 7, 5), choose()
    full = spread_tokens(tokens, visible, 24)
    assert torch.equal(gather_tokens(full, visible), tokens)
    assert full.count_nonzero() == tokens.numel()


@pytest.mark.parametrize("size", [(3, 3), (5, 5), (1, 9)], ids=str)
def test_places_without_a_token_are_zeros(size):
    tokens, weight, visible = torch.randn(3, 7, 5), torch.randn(5, 1, *size), choose()
    tokens.requires_grad_()
    found, wanted = depthwise_on_grid(tokens, weight, GRID, visible=visible), convolved(tokens, weight, GRID, visible)
    torch.testing.assert_close(found, wanted)
    upstream = torch.randn_like(found)
    gradients = [torch.autograd.grad(out, tokens, upstream)[0] for out in (found, wanted)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("prefix", [0, 1, 3])
def test_filter_along_the_tokens_keeps_their_distances(prefix):
    conv, visible = TokenConv(num_heads=2), choose()
    v = torch.randn(3, prefix + 7, 2, 4)
    places = torch.cat([torch.arange(prefix).expand(3, -1), prefix + visible], dim=1)
    weight = conv.weight.repeat_interleave(4, 0).unsqueeze(-2)
    wanted = convolved(v.flatten(2), weight, (1, prefix + 24), places).unflatten(-1, (2, 4))
    torch.testing.assert_close(conv(v, GRID, visible), wanted)


@pytest.mark.parametrize("prefix", [0, 2])
def test_filter_on_the_grid_leaves_the_prefix_alone(prefix):
    conv, visible = GridConv(2, kernel_size=3, num_prefix_tokens=prefix), choose()
    v = torch.randn(3, prefix + 7, 2, 4)
    found = conv(v, GRID, visible)
    assert not found[:, :prefix].any()
    wanted = convolved(v[:, prefix:].flatten(2), conv.weight.repeat_interleave(4, 0), GRID, visible)
    torch.testing.assert_close(found[:, prefix:].flatten(2), wanted)


@pytest.mark.parametrize("prefix", [0, 1])
def test_mlp_follows_the_note(prefix):
    mlp, visible = Mlp(8, 16, conv_size=5, num_prefix_tokens=prefix), choose()
    x = torch.randn(3, prefix + 7, 8)
    mlp.grid_note.grid, mlp.grid_note.visible = GRID, visible
    hidden = mlp.fc1(x)
    patches = convolved(hidden[:, prefix:], mlp.conv.weight, GRID, visible)
    wanted = mlp.fc2(mlp.act(torch.cat([hidden[:, :prefix], patches], dim=1)))
    torch.testing.assert_close(mlp(x), wanted)


@pytest.mark.parametrize("local_conv", ["tokens", "grid"])
def test_attention_is_that_of_the_visible_tokens_with_convolutions_at_their_places(local_conv):
    config = AttentionConfig(local_conv=local_conv, local_conv_size=3)
    block, visible = CastlingAttention(16, 2, config=config, num_prefix_tokens=1), choose()
    block.grid_note.grid, block.grid_note.visible = GRID, visible
    x = 3 * torch.randn(3, 8, 16)
    v = block.qkv(x).unflatten(-1, (3, 2, -1)).unbind(2)[2]
    local = block.local_conv(v, GRID, visible).flatten(2)
    without = copy.deepcopy(block)
    without.local_conv = None
    wanted = without(x) + torch.nn.functional.linear(local, block.proj.weight)
    torch.testing.assert_close(block(x), wanted, atol=1e-5, rtol=1e-4)
    castled = castle(block).eval()
    folded = optimize(castled)
    for one in (castled, folded):
        one.grid_note.grid, one.grid_note.visible = GRID, visible
    torch.testing.assert_close(folded(x), castled(x), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("layer", [TokenConv(2), GridConv(2, 3)], ids=lambda layer: type(layer).__name__)
def test_all_places_visible_is_as_if_none_were_named(layer):
    v, everywhere = torch.randn(2, 24, 2, 4), torch.arange(24).expand(2, -1)
    assert torch.equal(layer(v, GRID, everywhere), layer(v, GRID))


def test_a_grid_that_is_passed_has_tokens_everywhere():
    mlp, x = Mlp(8, conv_size=3), torch.randn(1, 24, 8)
    wanted = mlp(x, grid=GRID)
    mlp.grid_note.grid, mlp.grid_note.visible = (8, 8), choose(1)
    assert torch.equal(mlp(x, grid=GRID), wanted)


def test_the_next_image_has_tokens_everywhere_again():
    options = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2}
    model = timm.create_model("castling_deit_tiny_patch16_224", **options).eval()
    image = torch.randn(1, 3, 32, 32)
    wanted = model(image)
    model.patch_embed.grid_note.visible = choose(1)
    assert torch.equal(model(image), wanted)


def test_a_copy_of_a_note_starts_empty():
    note = GridNote()
    note.grid, note.visible = GRID, choose()
    for other in (copy.deepcopy(note), pickle.loads(pickle.dumps(note))):
        assert (other.grid, other.visible) == (None, None)


def test_tokens_that_places_do_not_hold_are_refused():
    visible = choose(num_visible=7)
    assert resolve_grid(8, GRID, 1, visible) == GRID
    with pytest.raises(ValueError, match=r"7 visible places of the grid \(4, 6\) do not hold 8 tokens"):
        resolve_grid(8, GRID, 0, visible)
    with pytest.raises(ValueError, match="of the grid None"):
        TokenConv(2)(torch.randn(3, 7, 2, 4), None, visible)
