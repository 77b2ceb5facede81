import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.layers import resample_abs_pos_embed

from castling import AttentionConfig, CastlingAttention, is_castled, set_blend
from castling.conversion.converted import converted_attentions
from castling.models.input_size import at_size
from castling.models.levit_attention import LevitDesign
from castling.models.pretrained import NEW_PARAMETERS
from castling.tasks.networks import (
    ConvertConfig,
    NetworkConfig,
    head_width,
    load_start,
    make_network,
    network_facts,
    read_weights,
    start_network,
)

NAME = "castling_deit_tiny_patch16_224"
TINY = {"img_size": 32, "patch_size": 4, "embed_dim": 32, "depth": 1, "num_heads": 2}


def build(seed=0, num_classes=10, channels=1, name=NAME, options=TINY, **settings):
    """The network as training begins."""
    torch.manual_seed(seed)
    network, original = start_network(NetworkConfig(name, options=options, **settings), num_classes, channels, {}, [])
    assert original is None
    return network


def attentions(model):
    return [module for module in model.modules() if isinstance(module, CastlingAttention)]


@pytest.fixture
def plain(tmp_path):
    """Timm's DeiT of the same size with seven classes, and its weights in a file."""
    torch.manual_seed(1)
    model = timm.create_model("deit_tiny_patch16_224", num_classes=7, in_chans=1, **TINY)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)  # so that no weight is what another network begins with
    save_file(model.state_dict(), tmp_path / "plain.safetensors")
    return model.state_dict(), str(tmp_path / "plain.safetensors")


def test_options_classes_and_channels_are_used():
    model = build(num_classes=3, options={**TINY, "depth": 2})
    assert model(torch.zeros(2, 1, 32, 32)).shape == (2, 3)
    assert len(attentions(model)) == 2


def test_attention_settings_are_used():
    model = build(attention=AttentionConfig(threshold=0.5, value_term="sum"))
    assert attentions(model)[0].config == AttentionConfig(threshold=0.5, value_term="sum")
    assert attentions(build(kernel="softmax"))[0].config.kernel == "softmax"


def test_design_settings_are_used():
    options = {"name": "castling_levit_128", "options": {}, "channels": 3}
    plain = build(**options)
    assert not is_castled(plain)
    assert is_castled(build(**options, design=LevitDesign(attention=AttentionConfig(aux=False))))


def test_model_of_timm_is_built():
    assert build(name="test_resnet", options={}, num_classes=3)(torch.zeros(2, 1, 32, 32)).shape == (2, 3)


@pytest.mark.parametrize(
    ("name", "near"), [("castling_diet_tiny_patch16_224", NAME), ("resnet_18", "resnet18"), ("levitt_128", "levit_128")]
)
def test_unknown_name_gives_the_nearest(name, near):
    with pytest.raises(ValueError, match=f"unknown model '{name}': did you mean '{near}'"):
        NetworkConfig(name)


@pytest.mark.parametrize(
    "settings", [{"kernel": "softmax"}, {"attention": AttentionConfig()}, {"design": LevitDesign()}], ids=str
)
def test_attention_settings_of_other_models_are_refused(settings):
    [given] = settings
    with pytest.raises(ValueError, match=f"{given}: only Castling models have these; test_vit is not one of them"):
        NetworkConfig("test_vit", **settings)


WRONG_OPTIONS = [{"dephth": 2}, {"depth": "two"}, {"num_heads": 5}, {"num_classes": 3}, {"img_size": [16]}]


@pytest.mark.parametrize("option", WRONG_OPTIONS, ids=str)
def test_wrong_option_is_named(option):
    [given] = option
    with pytest.raises(ValueError, match=f"{NAME} cannot be made with options .*'{given}'"):
        build(options={**TINY, **option})


def test_design_of_the_other_family_is_refused():
    with pytest.raises(ValueError, match="design"):
        build(design=LevitDesign())


def test_weights_of_the_plain_network_are_kept_but_for_the_head(plain):
    weights, path = plain
    fresh, loaded = build(seed=2).state_dict(), build(seed=2, weights=path).state_dict()
    new = {name for name in fresh if name.startswith("head.") or name.endswith(NEW_PARAMETERS)}
    assert new - set(weights) == {"blocks.0.attn.local_conv.weight", "blocks.0.mlp.conv.weight"}
    assert set(weights) == set(fresh) - new | {"head.weight", "head.bias"}
    for name, value in loaded.items():
        assert torch.equal(value, (fresh if name in new else weights)[name]), name


def test_head_of_the_same_size_is_kept(plain):
    weights, path = plain
    assert torch.equal(build(num_classes=7, weights=path).head.weight, weights["head.weight"])


def test_weights_of_the_same_network_are_kept(tmp_path):
    model = build(seed=3)
    torch.save(model.state_dict(), tmp_path / "own.pth")
    loaded = build(seed=4, weights=str(tmp_path / "own.pth"))
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in loaded.state_dict().items())


def test_head_under_another_name_stays_new_too(tmp_path):
    # Timm's convolutional networks call theirs fc or classifier.
    torch.manual_seed(5)
    weights = timm.create_model("test_resnet", num_classes=7).state_dict()
    save_file(weights, tmp_path / "x.safetensors")
    options = {"name": "test_resnet", "options": {}, "channels": 3}
    fresh, loaded = build(**options), build(**options, weights=str(tmp_path / "x.safetensors"))
    assert torch.equal(loaded.fc.weight, fresh.fc.weight)
    assert torch.equal(loaded.conv1[0].weight, weights["conv1.0.weight"])


@pytest.mark.parametrize("prefix", ["backbone.", "backbone.vit.", "backbone.model.", "model."])
def test_weights_of_a_whole_network_give_those_of_its_backbone(tmp_path, prefix):
    model = build(seed=3, num_classes=0)
    whole = {f"{prefix}{name}": value for name, value in model.state_dict().items()}
    others = {"decoder.blocks.0.weight": torch.ones(2), "head.weight": torch.ones(10, 32)} if "." in prefix[:-1] else {}
    save_file(whole | others, tmp_path / "whole.safetensors")
    fresh, loaded = build(seed=4), build(seed=4, weights=str(tmp_path / "whole.safetensors"))
    for name, value in loaded.state_dict().items():
        assert torch.equal(value, (fresh if name.startswith("head.") else model).state_dict()[name]), name
    bare = build(seed=5, num_classes=0)
    load_start(bare, tmp_path / "whole.safetensors")
    assert all(torch.equal(value, bare.state_dict()[name]) for name, value in model.state_dict().items())


def test_maps_of_stages_start_from_a_whole_network_too(tmp_path):
    options = {"name": "castling_lcnet_vit_small", "options": {"scale": 0.25, "num_heads": [2, 2]}, "channels": 3}
    model = build(**options, num_classes=None)
    save_file({f"backbone.{name}": value for name, value in model.state_dict().items()}, tmp_path / "x.safetensors")
    loaded = build(**options, seed=1, num_classes=None, weights=str(tmp_path / "x.safetensors"))
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in loaded.state_dict().items())


def test_missing_weights_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"model\.weights: there is no file .*nowhere\.pth"):
        build(weights=str(tmp_path / "nowhere.pth"))


def test_weights_of_another_network_are_refused(plain):
    _, path = plain
    with pytest.raises(ValueError, match=r"do not fit: missing .*blocks\.1\.norm1\.weight"):
        build(options={**TINY, "depth": 2}, weights=path)


def test_weights_of_another_size_are_refused(plain):
    _, path = plain
    with pytest.raises(ValueError, match="do not fit"):
        build(options={**TINY, "embed_dim": 64}, weights=path)


@pytest.mark.parametrize("name", ["x.safetensors", "x.pth"])
def test_damaged_weights_are_named(tmp_path, name):
    (tmp_path / name).write_text("hello, these are no weights")
    with pytest.raises(ValueError, match=name):
        build(weights=str(tmp_path / name))


def test_network_for_weights_to_come_needs_no_starting_weights(plain):
    weights, path = plain
    config = NetworkConfig(NAME, options=TINY, weights=path)
    fresh = make_network(config, 7, 1, {}).state_dict()
    assert fresh.keys() == build(num_classes=7, weights=path).state_dict().keys()
    assert not torch.equal(fresh["head.weight"], weights["head.weight"])
    make_network(NetworkConfig(NAME, options=TINY, weights="/nowhere/gone.pth"), 7, 1, {})


PLAIN = {**TINY, "patch_size": 8}
WITHOUT_SCALES = ConvertConfig(calibrate=0)


@pytest.fixture
def vit(tmp_path):
    """Timm's ViT for pictures of 32 pixels with seven classes, and a file with its weights."""
    torch.manual_seed(2)
    network = timm.create_model("vit_tiny_patch16_224", num_classes=7, in_chans=1, **PLAIN).eval()
    save_file(network.state_dict(), tmp_path / "vit.safetensors")
    return network, str(tmp_path / "vit.safetensors")


def vit_config(weights, **settings):
    return NetworkConfig("vit_tiny_patch16_224", options=PLAIN, weights=weights, **settings)


def batches(count, size=32):
    made = torch.Generator().manual_seed(0)
    return [{"image": torch.randn(4, 1, size, size, generator=made)} for _ in range(count)]


def test_converted_network_starts_as_its_original(vit):
    host, weights = vit
    network, original = start_network(vit_config(weights, convert=WITHOUT_SCALES), 7, 1, {}, [])
    images = torch.randn(2, 1, 32, 32)
    for one in (network.eval(), original):
        torch.testing.assert_close(one(images), host(images))
    assert not any(parameter.requires_grad for parameter in original.parameters())
    assert all(parameter.requires_grad for parameter in network.parameters())
    assert list(converted_attentions(network)) == list(converted_attentions(original)) == ["blocks.0.attn"]


def test_only_the_named_attentions_are_converted(vit):
    convert = ConvertConfig(only=["blocks.1.attn"], calibrate=0)
    config = NetworkConfig("vit_tiny_patch16_224", options={**PLAIN, "depth": 2}, convert=convert)
    for network in (make_network(config, 7, 1, {}), start_network(config, 7, 1, {}, [])[0]):
        assert list(converted_attentions(network)) == ["blocks.1.attn"]


def test_heads_learn_their_scale_from_as_many_batches_as_are_named(vit):
    _, weights = vit
    scales = []
    for count in (0, 1, 2):
        convert = ConvertConfig(calibrate=count)
        seen = iter(batches(3))
        network, _ = start_network(vit_config(weights, convert=convert), 7, 1, {}, seen)
        assert len(list(seen)) == 3 - count
        scales.append(network.blocks[0].attn.head_scale)
    assert scales[0] is None
    assert scales[1].shape == (2,)
    assert not torch.equal(scales[1], scales[2])


def test_converted_network_for_weights_to_come_takes_them(vit):
    _, weights = vit
    config = vit_config(weights, convert=ConvertConfig(calibrate=1))
    started, _ = start_network(config, 7, 1, {}, batches(1))
    made = make_network(config, 7, 1, {})
    made.load_state_dict(started.state_dict())
    images = torch.randn(2, 1, 32, 32)
    for network in (made, started):
        set_blend(network.eval(), 1.0)
    torch.testing.assert_close(made(images), started(images))


def test_stage_starts_with_the_weights_of_the_one_before_and_keeps_the_original(vit, tmp_path):
    host, weights = vit
    before, _ = start_network(vit_config(weights, convert=ConvertConfig(calibrate=1)), 7, 1, {}, batches(1))
    torch.nn.init.normal_(before.blocks[0].mlp.fc1.weight)
    save_file(before.state_dict(), tmp_path / "stage.safetensors")
    convert = ConvertConfig(start=str(tmp_path / "stage.safetensors"))
    network, original = start_network(vit_config(weights, convert=convert), 7, 1, {}, [])  # without pictures
    for name, value in before.state_dict().items():
        assert torch.equal(network.state_dict()[name], value), name
    images = torch.randn(2, 1, 32, 32)
    torch.testing.assert_close(original(images), host(images))


def test_stage_that_does_not_fit_is_refused(vit, tmp_path):
    _, weights = vit
    for start in (weights, str(tmp_path / "nowhere.safetensors")):
        convert = ConvertConfig(start=start)
        with pytest.raises(ValueError, match=rf"model\.convert\.start: .*{start}"):
            start_network(vit_config(weights, convert=convert), 7, 1, {}, [])


@pytest.mark.parametrize("name", [NAME, "vit_tiny_patch16_224"])
def test_input_size_resamples_the_positions(tmp_path, name):
    config = NetworkConfig(name, options=PLAIN)
    host = start_network(config, 7, 1, {}, [])[0]
    torch.nn.init.normal_(host.pos_embed)
    save_file(host.state_dict(), tmp_path / "x.safetensors")
    config = NetworkConfig(name, options=PLAIN, weights=str(tmp_path / "x.safetensors"), input_size=64)
    network, _ = start_network(config, 7, 1, {}, [])
    assert (host.pos_embed.shape[1], network.pos_embed.shape[1]) == (17, 65)
    wanted = resample_abs_pos_embed(host.pos_embed, (8, 8), num_prefix_tokens=1)
    torch.testing.assert_close(network.pos_embed, wanted)
    for fresh in (network, make_network(config, 7, 1, {})):
        assert fresh(torch.zeros(2, 1, 64, 64)).shape == (2, 7)
    make_network(config, 7, 1, {}).load_state_dict(network.state_dict())


def test_stage_at_another_input_size_starts_with_resampled_positions(vit, tmp_path):
    host, weights = vit
    before, _ = start_network(vit_config(weights, convert=WITHOUT_SCALES), 7, 1, {}, [])
    torch.nn.init.normal_(before.pos_embed)
    save_file(before.state_dict(), tmp_path / "stage.safetensors")
    convert = ConvertConfig(start=str(tmp_path / "stage.safetensors"))
    network, original = start_network(vit_config(weights, convert=convert, input_size=64), 7, 1, {}, [])
    wanted = resample_abs_pos_embed(before.pos_embed, (8, 8), num_prefix_tokens=1)
    torch.testing.assert_close(network.pos_embed, wanted)
    host.set_input_size(img_size=(64, 64))
    images = torch.randn(2, 1, 64, 64)
    torch.testing.assert_close(original(images), host(images))
    assert network(images).shape == (2, 7)


def test_scales_are_learned_at_the_input_size(vit):
    _, weights = vit
    convert = ConvertConfig(AttentionConfig(aux=False, local_conv="grid"), calibrate=1)
    config = vit_config(weights, convert=convert, input_size=64)
    network, _ = start_network(config, 7, 1, {}, batches(1, size=64))
    assert network.blocks[0].attn.head_scale.shape == (2,)
    assert network.blocks[0].attn.grid_note.grid == (8, 8)


def test_network_at_another_size_is_a_copy(vit):
    host, _ = vit
    positions = host.pos_embed.clone()
    assert at_size(host, 64).pos_embed.shape[1] == 65
    assert torch.equal(host.pos_embed, positions)
    convolutional = timm.create_model("test_resnet")  # takes any size
    assert at_size(convolutional, 64).state_dict().keys() == convolutional.state_dict().keys()


def test_width_of_the_head_is_that_of_the_weights(tmp_path):
    for name, options in (("vit_tiny_patch16_224", PLAIN), (NAME, PLAIN), ("test_resnet", {}), ("levit_128s", {})):
        for width in (0, 7):
            network = timm.create_model(name, num_classes=width, **options)
            save_file(network.state_dict(), tmp_path / "x.safetensors")
            assert head_width(NetworkConfig(name, weights=str(tmp_path / "x.safetensors"))) == width, name


def test_width_of_a_distilled_head_is_that_of_the_weights(tmp_path):
    network = timm.create_model(NAME, num_classes=7, distilled=True, **TINY)
    save_file(network.state_dict(), tmp_path / "x.safetensors")
    assert head_width(NetworkConfig(NAME, weights=str(tmp_path / "x.safetensors"))) == 7


def test_width_of_the_head_without_weights_is_that_of_timm():
    assert head_width(NetworkConfig("vit_tiny_patch16_224")) == 1000


@pytest.mark.parametrize("width", [0, 7])
def test_weights_without_a_head_leave_the_head_new(tmp_path, width):
    torch.manual_seed(5)
    weights = timm.create_model("vit_tiny_patch16_224", num_classes=0, in_chans=1, **PLAIN).state_dict()
    save_file(weights, tmp_path / "x.safetensors")
    network, _ = start_network(vit_config(str(tmp_path / "x.safetensors")), width, 1, {}, [])
    assert torch.equal(network.blocks[0].attn.qkv.weight, weights["blocks.0.attn.qkv.weight"])
    assert network(torch.zeros(1, 1, 32, 32)).shape == (1, width or 32)


def test_weights_with_a_head_fit_a_network_without(vit):
    host, weights = vit
    network, _ = start_network(vit_config(weights), 0, 1, {}, [])
    images = torch.randn(2, 1, 32, 32)
    torch.testing.assert_close(network.eval()(images), host.forward_head(host.forward_features(images), True))


def test_weights_are_read_for_whoever_asks(vit, tmp_path):
    host, weights = vit
    assert read_weights(weights, "--weights").keys() == host.state_dict().keys()
    with pytest.raises(ValueError, match=r"^--weights: there is no file .*nowhere"):
        read_weights(tmp_path / "nowhere", "--weights")


def test_networks_of_the_registry_have_no_facts():
    assert network_facts(NetworkConfig(NAME)) == {}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"depth": 0}, r"options\.depth must be at least 1; got 0"),
        ({"num_heads": [2, 0]}, r"options\.num_heads must be at least 1; got \[2, 0\]"),
        ({"patch_size": 0}, r"options\.patch_size must be at least 1; got 0"),
        ({"drop_path_rate": 2}, r"options\.drop_path_rate must lie in \[0, 1\); got 2"),
    ],
)
def test_options_outside_their_range_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        NetworkConfig("castling_deit_tiny_patch16_224", options=options)
