import copy
import pickle

import pytest
import timm
import torch
from timm.layers import PatchEmbed

from castling import AttentionConfig, castle
from castling.attention import CastlingAttention, Mlp
from castling.models import load_host_weights

TINY = "castling_deit_tiny_patch16_224"


@pytest.mark.parametrize("options", [{}, {"class_token": False, "global_pool": "avg"}, {"reg_tokens": 4}], ids=str)
def test_softmax_twin_without_convolutions_is_timms_deit(options):
    theirs = timm.create_model("deit_tiny_patch16_224", depth=3, **options).eval()
    ours = timm.create_model(TINY, depth=3, attention=AttentionConfig.baseline(), mlp_conv_size=0, **options).eval()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 3, 224, 224)
    torch.testing.assert_close(ours(x), theirs(x), atol=1e-5, rtol=0)


def test_distilled_twin_is_timms():
    theirs = timm.create_model("deit_tiny_distilled_patch16_224", depth=2).eval()
    ours = timm.create_model(
        TINY, depth=2, distilled=True, attention=AttentionConfig.baseline(), mlp_conv_size=0
    ).eval()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(1, 3, 224, 224)
    torch.testing.assert_close(ours(x), theirs(x), atol=1e-5, rtol=0)
    ours.set_distilled_training(True)
    assert len(ours.train()(x)) == 2


def test_prefix_tokens_are_known_to_every_block():
    model = timm.create_model(TINY, depth=2, distilled=True)
    assert {block.mlp.num_prefix_tokens for block in model.blocks} == {2}


def test_softmax_twin_keeps_the_convolutions():
    block = timm.create_model(TINY, depth=1, kernel="softmax").blocks[0]
    assert block.attn.config.kernel == "softmax"
    assert block.attn.aux is None
    assert block.attn.local_conv is not None
    assert block.mlp.conv is not None


def test_blocks_are_ours_and_initialised_as_timms():
    block = timm.create_model(TINY, depth=1, attn_drop_rate=0.1, proj_drop_rate=0.2).blocks[0]
    assert isinstance(block.attn, CastlingAttention)
    assert isinstance(block.mlp, Mlp)
    assert block.attn.attn_drop == 0.1
    assert block.attn.proj_drop.p == block.mlp.drop1.p == 0.2
    assert block.attn.qkv.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert not block.mlp.fc1.bias.any()


def test_weights_of_timm_load_and_only_the_convolutions_are_new():
    from timm.models.vision_transformer import checkpoint_filter_fn

    theirs = timm.create_model("vit_tiny_patch16_224", depth=2)
    ours = timm.create_model(TINY, depth=2)
    new = load_host_weights(ours, theirs.state_dict())
    assert new == [f"blocks.{i}.{name}.weight" for i in range(2) for name in ("attn.local_conv", "mlp.conv")]
    assert torch.equal(ours.blocks[1].attn.qkv.weight, theirs.blocks[1].attn.qkv.weight)
    larger = timm.create_model(TINY, depth=2, img_size=(96, 160))
    load_host_weights(larger, theirs.state_dict(), checkpoint_filter_fn)
    assert larger.pos_embed.shape == (1, 61, 192)


def test_weights_that_do_not_fit_are_refused_and_nothing_changes():
    ours = timm.create_model(TINY, depth=2)
    before = {name: tensor.clone() for name, tensor in ours.state_dict().items()}
    with pytest.raises(ValueError, match=r"missing \['blocks.1.attn.proj.bias'"):
        load_host_weights(ours, timm.create_model("vit_tiny_patch16_224", depth=1).state_dict())
    with pytest.raises(ValueError, match=r"unexpected \['blocks.2.attn.proj.bias'"):
        load_host_weights(ours, timm.create_model("vit_tiny_patch16_224", depth=3).state_dict())
    assert all(torch.equal(ours.state_dict()[name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize("patch_size", [2, 4, 8])
def test_other_patch_sizes(patch_size):
    model = timm.create_model(TINY, depth=1, patch_size=patch_size, img_size=32)
    assert model(torch.randn(1, 3, 32, 32)).shape == (1, 1000)
    assert model.patch_embed.num_patches == (32 // patch_size) ** 2


@pytest.mark.parametrize(
    ("size", "nearest"), [((100, 224), "96 x 224 and 112 x 224"), ((8, 40), "16 x 32 and 16 x 48")]
)
def test_sizes_that_do_not_fit_are_named(size, nearest):
    model = timm.create_model(TINY, depth=1)
    with pytest.raises(ValueError, match=f"{size[0]} x {size[1]} does not fit patches of 16 x 16; .* {nearest}"):
        model(torch.randn(1, 3, *size))


def test_grid_of_one_image_does_not_leak_into_the_next():
    model = timm.create_model(TINY, depth=1).eval()
    wide, tall = torch.randn(1, 3, 32, 64), torch.randn(1, 3, 64, 32)
    expected = model(wide)
    model(tall)
    assert torch.equal(model(wide), expected)
    model.forward_intermediates(tall)
    assert torch.equal(model(wide), expected)


def test_set_input_size_resamples_positions_for_good():
    model = timm.create_model(TINY, depth=1)
    model.set_input_size((64, 96))
    assert model.pos_embed.shape == (1, 1 + 4 * 6, 192)
    assert model(torch.randn(1, 3, 64, 96)).shape == (1, 1000)


def test_padding_takes_any_size():
    model = timm.create_model(TINY, depth=1, dynamic_img_pad=True)
    assert model(torch.randn(1, 3, 50, 70)).shape == (1, 1000)


def test_patches_need_not_be_square():
    model = timm.create_model(TINY, depth=1, patch_size=(16, 8), img_size=(64, 48))
    assert model(torch.randn(1, 3, 32, 40)).shape == (1, 1000)
    with pytest.raises(ValueError, match=r"patches of 16 x 8; .* 32 x 40 and 48 x 40"):
        model(torch.randn(1, 3, 40, 40))


def test_a_copy_shares_one_note_of_its_own():
    model = timm.create_model(TINY, depth=2)
    model(torch.randn(1, 3, 32, 64))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        notes = {id(layer.grid_note) for block in other.blocks for layer in (block.attn, block.mlp)}
        assert notes == {id(other.patch_embed.grid_note)} != {id(model.patch_embed.grid_note)}
        assert other.patch_embed.grid_note.grid is None
        assert torch.equal(other(torch.ones(1, 3, 64, 32)), model(torch.ones(1, 3, 64, 32)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:While compiling, we found certain side effects")
def test_strict_export():
    model, x = castle(timm.create_model(TINY, depth=1)).eval(), torch.randn(1, 3, 32, 64)
    torch.testing.assert_close(torch.export.export(model, (x,), strict=True).module()(x), model(x))


def test_bad_options_are_named():
    with pytest.raises(ValueError, match="does not take qk_norm"):
        timm.create_model(TINY, qk_norm=True)
    with pytest.raises(ValueError, match="does not take embed_layer"):
        timm.create_model(TINY, embed_layer=PatchEmbed)
    with pytest.raises(ValueError, match="did you mean 'softmax'"):
        timm.create_model(TINY, kernel="softmx")
    with pytest.raises(ValueError, match="conv_size must be odd"):
        timm.create_model(TINY, mlp_conv_size=4)
