"""What timm asks of a model, asked of every registered name: its configuration, heads, features and graphs of FX."""

import copy
import functools

import pytest
import timm
import torch
from timm.models import (
    FeatureGraphNet,
    FeatureInfo,
    GraphExtractNet,
    create_feature_extractor,
    get_graph_node_names,
    get_notrace_functions,
    get_notrace_modules,
)
from timm.optim import param_groups_layer_decay, param_groups_weight_decay
from torchvision.models import feature_extraction

from castling import AttentionConfig, castle, optimize
from castling.attention import branches

SMALLEST = ["castling_deit_tiny_patch16_224", "castling_levit_128", "castling_mvitv2_tiny"]
SMALLEST += ["castling_lcnet_vit_small", "castling_esnet_vit_small"]
# Larger hybrids differ in widths alone, which `test_lcnet_vit.py` and `test_esnet_vit.py` count.
MODELS = [name for name in timm.list_models("castling_*") if "net_vit" not in name or name in SMALLEST]
# The smallest of a family stand for it in the fast tier.
BY_SIZE = [name if name in SMALLEST else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]
# Shallow versions, where depth adds time but nothing to see.
SHALLOW = {"deit": {"depth": 3}, "levit": {"depth": (1, 1, 1)}, "mvitv2": {"depths": (1, 1, 1, 1)}}
SHALLOW["esnet"] = {"ratios": ((0.5, 0.5), (0.5,), (0.5, 0.5))}


def make(name, **kwargs):
    return timm.create_model(name, **SHALLOW.get(name.split("_")[1], {}), **kwargs).eval()


@functools.cache
def shallow(name):
    """Made once, since weights take long to draw; a test that changes it takes a copy."""
    return make(name)


def images(height=64, width=64, batch=2):
    return torch.randn(batch, 3, height, width)


def as_tokens(features):
    """Maps `(B, C, H, W)` as tokens, which is what graphs of transformers hold."""
    return features if features.ndim == 3 else features.flatten(2).transpose(1, 2)


@pytest.mark.parametrize("name", BY_SIZE)
def test_the_configuration_is_true(name):
    with torch.device("meta"):
        model, x = make(name), images(224, 224)
    config, weights = model.default_cfg, model.state_dict()
    assert config["input_size"] == x.shape[1:]
    assert config["pool_size"] is None  # tokens have none
    assert not config["fixed_input_size"]
    assert weights[f"{config['first_conv']}.weight"].shape[1] == 3
    assert weights[f"{config['classifier']}.weight"].shape == (config["num_classes"], model.head_hidden_size)
    assert model.num_classes == config["num_classes"]
    assert model(x).shape == (2, config["num_classes"])


@pytest.mark.parametrize("name", BY_SIZE)
def test_head_removal_and_pre_logits(name):
    model, x = copy.deepcopy(shallow(name)), images()
    features = model.forward_features(x)
    assert as_tokens(features).shape[-1] == model.num_features
    pooled = model.forward_head(features, pre_logits=True)
    assert pooled.shape == (2, model.head_hidden_size)
    torch.testing.assert_close(model(x), model.forward_head(features))
    assert isinstance(model.get_classifier(), torch.nn.Module)
    model.reset_classifier(0)
    assert model.num_classes == 0
    torch.testing.assert_close(model(x), pooled)
    model.reset_classifier(7)
    assert model(x).shape == (2, 7)
    with torch.device("meta"):
        assert make(name, num_classes=0)(images()).shape == (2, model.head_hidden_size)


@pytest.mark.parametrize("name", BY_SIZE)
def test_intermediates_are_those_that_the_feature_info_lists(name):
    model, x = copy.deepcopy(shallow(name)), images(64, 128)
    info = FeatureInfo(model.feature_info, len(model.feature_info))
    final, features = model.forward_intermediates(x)
    torch.testing.assert_close(final, model.forward_features(x))
    assert len(features) == len(info.channels()) >= 3
    for feature, channels, stride in zip(features, info.channels(), info.reduction(), strict=True):
        assert feature.shape == (2, channels, 64 // stride, 128 // stride)
        assert feature.isfinite().all()
    model.set_grad_checkpointing()
    for again, feature in zip(model.forward_intermediates(x)[1], features, strict=True):
        torch.testing.assert_close(again, feature)


@pytest.mark.parametrize("name", BY_SIZE)
def test_features_only(name):
    with torch.device("meta"):
        model = make(name, features_only=True)
        features = model(images(64, 128))
    assert len(features) == len(model.feature_info.channels()) > 0
    for feature, channels, stride in zip(
        features, model.feature_info.channels(), model.feature_info.reduction(), strict=True
    ):
        assert feature.shape == (2, channels, 64 // stride, 128 // stride)


@pytest.mark.parametrize("name", BY_SIZE)
def test_gradient_checkpointing_changes_no_number(name):
    model, x = copy.deepcopy(shallow(name)).train(), images()
    expected = model(x)
    (first,) = torch.autograd.grad(expected.sum(), next(model.parameters()))
    model.set_grad_checkpointing(True)
    found = model(x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), next(model.parameters())), (first,))


@pytest.mark.parametrize("name", BY_SIZE)
def test_parameter_groups(name):
    model = shallow(name)
    total = sum(parameter.numel() for parameter in model.parameters())
    for groups in (param_groups_weight_decay(model), param_groups_layer_decay(model)):
        assert sum(parameter.numel() for group in groups for parameter in group["params"]) == total


def assert_graph_is_the_model(model):
    logits = get_graph_node_names(model)[1][-1]
    graph = GraphExtractNet(model, [logits])
    with torch.inference_mode():
        for size in ((64, 64), (96, 64)):
            x = images(*size)
            expected = model(x)
            model(images(32, 64))  # the graph shares layers with the model, but no sizes
            assert torch.equal(graph(x), expected)


@pytest.mark.parametrize("name", BY_SIZE)
def test_a_graph_of_fx_is_the_model_bit_by_bit_at_every_size(name):
    assert_graph_is_the_model(shallow(name))


@pytest.mark.parametrize("name", SMALLEST)
def test_castled_and_optimized_models_have_graphs_of_fx_as_well(name):
    castled = castle(shallow(name))
    assert_graph_is_the_model(castled)
    assert_graph_is_the_model(optimize(castled))


@pytest.mark.parametrize("name", BY_SIZE)
def test_a_graph_of_fx_trains_as_the_model(name):
    model, x = copy.deepcopy(shallow(name)).train(), images()
    logits = model.default_cfg["classifier"]
    graph = GraphExtractNet(model, [logits])
    gradients = []
    for network in (model, graph.train()):
        network(x).square().mean().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
        model.zero_grad()
    assert set(graph.parameters()) == set(model.parameters())
    for found, expected in zip(*gradients, strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("name", BY_SIZE)
def test_features_by_fx_are_the_intermediates(name):
    model, x = shallow(name), images(64, 128)
    indices = tuple(range(len(model.feature_info)))
    tokens = FeatureGraphNet(model, indices)(x)
    for found, feature in zip(tokens, model.forward_intermediates(x)[1], strict=True):
        # A class token stays in front; maps have none.
        assert torch.equal(as_tokens(found)[:, getattr(model, "num_prefix_tokens", 0) :], as_tokens(feature))


@pytest.mark.parametrize("name", SMALLEST)
def test_fx_as_feature_class_of_timm(name):
    model = make(name, features_only=True, feature_cls="fx", out_indices=(0, 2))
    assert isinstance(model, FeatureGraphNet)
    assert [as_tokens(feature).shape[-1] for feature in model(images())] == model.feature_info.channels()


@pytest.mark.parametrize("options", [{"kernel": "softmax"}, {"mlp_conv_size": 0}], ids=str)
@pytest.mark.parametrize("name", SMALLEST)
def test_twins_and_networks_without_convolutions_are_traced_as_well(name, options):
    model, x = make(name, **options), images()
    logits = model.default_cfg["classifier"]
    assert torch.equal(create_feature_extractor(model, [logits])(x)[logits], model(x))


def test_torchvisions_own_function_takes_timms_leaves():
    attention = AttentionConfig(local_conv="grid", local_conv_size=3)
    model, x = make(SMALLEST[0], attention=attention), images(32, 64)
    leaves = {"leaf_modules": get_notrace_modules(), "autowrap_functions": get_notrace_functions()}
    graph = feature_extraction.create_feature_extractor(
        model, {"blocks.1.attn": "attention", "blocks.1.mlp": "mlp", "head": "logits"}, tracer_kwargs=leaves
    )
    found = graph(x)
    assert torch.equal(found["logits"], model(x))
    assert found["attention"].shape == found["mlp"].shape == (2, 1 + 2 * 4, 192)


@pytest.mark.parametrize("name", SMALLEST)
def test_the_branch_lives_on_in_a_graph_of_fx(name):
    model, x = copy.deepcopy(shallow(name)), images()
    graph = GraphExtractNet(model, [model.default_cfg["classifier"]])
    for branch in branches(model).values():
        branch.set_threshold(1.0)
    graph(x)
    assert branches(model)
    assert all((branch.occupancy == 0).all() for branch in branches(model).values())
    assert branches(graph).keys() == {f"graph_module.{name}" for name in branches(model)}
