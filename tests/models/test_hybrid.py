import pytest
import timm
import torch

from castling import AttentionConfig
from castling.attention import KERNELS
from castling.models.hybrid import MapTransformer

NAMES = ["castling_lcnet_vit_small", "castling_esnet_vit_small"]
LAST = torch.channels_last


def test_a_transformer_without_convolutions_knows_no_positions():
    block = MapTransformer(32, 2, AttentionConfig(local_conv="none"))
    x, order = torch.randn(2, 32, 24), torch.randperm(24)
    expected = block(x.unflatten(-1, (4, 6))).flatten(2)[..., order]
    torch.testing.assert_close(block(x[..., order].unflatten(-1, (4, 6))).flatten(2), expected)


def test_its_convolutions_know_the_grid():
    """27 places make no square. A map on its side, with filters on their side, gives the output on its side."""
    block = MapTransformer(32, 2, AttentionConfig(local_conv="grid", local_conv_size=3), mlp_conv_size=3)
    x = torch.randn(2, 32, 3, 9)
    expected = block(x)
    for conv in (block.attn.local_conv, block.mlp.conv):
        conv.weight.data = conv.weight.data.mT
    torch.testing.assert_close(block(x.mT), expected.mT)


def test_maps_in_channels_last_order_are_tokens_as_they_lie():
    block = MapTransformer(32, 2)
    seen = []
    block.norm1.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].data_ptr()))
    x = torch.randn(2, 32, 4, 6).to(memory_format=LAST)
    assert block(x).is_contiguous(memory_format=LAST)
    assert seen == [x.data_ptr()]
    torch.testing.assert_close(block(x.contiguous()), block(x))


@pytest.mark.parametrize("name", NAMES)
def test_no_stage_leaves_the_channels_last_order(name):
    model = timm.create_model(name).eval().to(memory_format=LAST)
    _, features = model.forward_intermediates(torch.randn(2, 3, 64, 96).to(memory_format=LAST))
    assert [feature.is_contiguous(memory_format=LAST) for feature in features] == [True] * 5


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_learns(kernel):
    model = timm.create_model(NAMES[0], kernel=kernel, num_classes=10)
    model(torch.randn(2, 3, 64, 64)).square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_backbones_give_strides_8_16_and_32_unless_told(name):
    with torch.device("meta"):
        backbone = timm.create_model(name, features_only=True)
        every = timm.create_model(name, features_only=True, out_indices=(0, 1, 2, 3, 4))
        early = timm.create_model(name, features_only=True, out_indices=(1, 2))
        maps = every(torch.empty(1, 3, 96, 160))
    assert backbone.feature_info.reduction() == [8, 16, 32]
    assert every.feature_info.reduction() == [2, 4, 8, 16, 32]
    assert [tuple(x.shape[2:]) for x in maps] == [(48, 80), (24, 40), (12, 20), (6, 10), (3, 5)]
    assert not [key for key in backbone.state_dict() if "head" in key or "classifier" in key]
    assert {key.split(".")[2] for key in early.state_dict()} <= {"0", "1", "2"}  # later stages are gone


@pytest.mark.parametrize("name", NAMES)
def test_a_pruned_network_takes_a_new_classifier_on_what_is_left(name):
    model = timm.create_model(name)
    width = model.feature_info[3]["num_chs"]
    assert model.prune_intermediate_layers([2, 3]) == [2, 3]
    model.reset_classifier(7, "avg")
    assert model.num_features == model.head_hidden_size == width
    assert model(torch.randn(2, 3, 64, 64)).shape == (2, 7)


@pytest.mark.parametrize("name", NAMES)
def test_any_size_of_picture_fits(name):
    model = timm.create_model(name, num_classes=5).eval()
    assert model(torch.randn(1, 3, 75, 130)).shape == (1, 5)
    maps = model.forward_intermediates(torch.randn(1, 3, 75, 130), [2, 3, 4], intermediates_only=True)
    assert [tuple(x.shape[2:]) for x in maps] == [(10, 17), (5, 9), (3, 5)]


@pytest.mark.parametrize("name", NAMES)
def test_a_plain_network_has_no_attention_and_takes_no_options_of_it(name):
    with torch.device("meta"):
        model = timm.create_model(name, transformer=False)
    assert not [module for module in model.modules() if isinstance(module, MapTransformer)]
    with pytest.raises(ValueError, match="transformer=False has no attention; got attention=None, kernel='softmax'"):
        timm.create_model(name, transformer=False, kernel="softmax")


def test_options_reach_the_transformers():
    model = timm.create_model(NAMES[0], mlp_conv_size=5, drop_path_rate=0.1, num_heads=(4, 6), drop_rate=0.2)
    blocks = [module for module in model.modules() if isinstance(module, MapTransformer)]
    assert [block.attn.num_heads for block in blocks] == [4, 6]
    assert {block.mlp.conv.kernel_size for block in blocks} == {(5, 5)}
    assert {block.drop_path2.drop_prob for block in blocks} == {0.1}
    assert model.head_drop.p == 0.2
    with pytest.raises(ValueError, match="num_heads must divide dim; got dim=192, num_heads=7"):
        timm.create_model(NAMES[0], num_heads=(7, 16))
    with pytest.raises(ValueError, match=r"num_heads are those of two transformers; got \(8,\)"):
        timm.create_model(NAMES[0], num_heads=(8,))


def test_other_layouts_of_features_are_refused():
    with pytest.raises(ValueError, match="unknown output_fmt 'NLC'; legal: 'NCHW'"):
        timm.create_model(NAMES[0]).forward_intermediates(torch.randn(1, 3, 64, 64), output_fmt="NLC")
