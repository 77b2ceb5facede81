import json
import shutil

import pytest
import torch

from castling import set_blend
from castling.conversion.converted import converted_attentions
from castling.tasks.huggingface import HuggingFaceNetwork, is_huggingface, read_huggingface, read_preprocessing
from castling.tasks.networks import ConvertConfig, NetworkConfig, head_width, make_network, network_facts, start_network

transformers = pytest.importorskip("transformers")
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}
IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def save_host(folder, kind="ViTForImageClassification", **settings):
    """A small network of transformers, saved in a folder."""
    torch.manual_seed(0)
    host = getattr(transformers, kind)(transformers.ViTConfig(**SMALL, **settings)).eval()
    torch.nn.init.normal_(host.get_parameter(next(n for n, _ in host.named_parameters() if "position" in n)))
    host.save_pretrained(folder)
    return host


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A classifier of five classes and its folder."""
    folder = tmp_path_factory.mktemp("hub") / "vit"
    return save_host(folder, num_labels=5), folder


def start(folder, num_outputs, channels=3, facts=None, **settings):
    config = NetworkConfig(str(folder), **settings)
    network, original = start_network(config, num_outputs, channels, facts or network_facts(config), [])
    return network.eval(), original


def rewrite(folder, **changes):
    described = {**json.loads((folder / "config.json").read_text()), **changes}
    (folder / "config.json").write_text(json.dumps(described))


def test_folder_is_known_by_its_configuration(saved, tmp_path):
    _, folder = saved
    assert is_huggingface(str(folder))
    assert not is_huggingface(str(tmp_path))
    assert not is_huggingface("vit_tiny_patch16_224")
    read = read_huggingface(str(folder))
    assert (read["model_type"], read["architectures"], read["hidden_size"]) == (
        "vit",
        ["ViTForImageClassification"],
        32,
    )


def test_network_starts_with_the_weights_of_its_folder(saved):
    host, folder = saved
    network, original = start(folder, 5)
    assert original is None
    assert isinstance(network, HuggingFaceNetwork)
    assert torch.equal(network(IMAGES), host(IMAGES).logits)


@pytest.mark.parametrize("size", [(64, 64), (16, 16), (32, 48)], ids=str)
def test_other_picture_sizes_are_seen_as_transformers_sees_them(saved, size):
    host, folder = saved
    images = torch.randn(2, 3, *size)
    found = start(folder, 5)[0](images)
    assert torch.equal(found, host(images, interpolate_pos_encoding=True).logits)


def test_head_of_another_width_is_new_and_nothing_else(saved):
    host, folder = saved
    network, _ = start(folder, 7)
    assert network(IMAGES).shape == (2, 7)
    weights = {f"host.{name}": value for name, value in host.state_dict().items()}
    assert network.state_dict().keys() == weights.keys()
    for name, value in network.state_dict().items():
        assert "classifier" in name or torch.equal(value, weights[name]), name


def test_network_is_made_from_its_facts_without_the_folder(saved, tmp_path):
    host, folder = saved
    shutil.copytree(folder, tmp_path / "vit")
    config = NetworkConfig(str(tmp_path / "vit"))
    facts = json.loads(json.dumps(network_facts(config)))  # as a run keeps them
    shutil.rmtree(tmp_path / "vit")
    network = make_network(config, 5, 3, facts)
    network.load_state_dict({f"host.{name}": value for name, value in host.state_dict().items()})
    assert torch.equal(network.eval()(IMAGES), host(IMAGES).logits)


def test_start_without_the_folder_is_refused(saved, tmp_path):
    # New weights in the place of trained ones would be found out much later.
    facts = network_facts(NetworkConfig(str(saved[1])))
    gone = tmp_path / "gone"
    for known in (facts, None):
        with pytest.raises(ValueError, match=f"there is no folder {gone} with a network that transformers saved"):
            start(gone, 5, facts=known)


@pytest.mark.parametrize(
    ("kind", "shape"), [("ViTForImageClassification", (2, 5)), ("ViTModel", (2, 32)), ("unpooled", (2, 17, 32))]
)
def test_output_is_logits_else_pooled_features_else_tokens(kind, shape):
    config = transformers.ViTConfig(**SMALL, num_labels=5)
    if kind == "unpooled":
        host = transformers.ViTModel(config, add_pooling_layer=False)
    else:
        host = getattr(transformers, kind)(config)
    assert HuggingFaceNetwork(host)(IMAGES).shape == shape


def test_width_of_the_head_is_that_of_the_labels(saved, tmp_path):
    assert head_width(NetworkConfig(str(saved[1]))) == 5
    save_host(tmp_path / "two", num_labels=2)  # the default, which transformers does not write down
    assert head_width(NetworkConfig(str(tmp_path / "two"))) == 2
    save_host(tmp_path / "none", kind="ViTModel")
    assert head_width(NetworkConfig(str(tmp_path / "none"))) == 0


def test_network_without_a_head_starts_with_its_weights(tmp_path):
    host = save_host(tmp_path / "vit", kind="ViTModel")
    assert torch.equal(start(tmp_path / "vit", 0)[0](IMAGES), host(IMAGES).pooler_output)


def test_options_change_the_configuration(saved):
    config = NetworkConfig(str(saved[1]), options={"num_hidden_layers": 1, "layer_norm_eps": 1e-3})
    network = make_network(config, 5, 3, network_facts(config))
    assert (network.host.config.num_hidden_layers, network.host.config.layer_norm_eps) == (1, 1e-3)
    assert make_network(NetworkConfig(str(saved[1])), 5, 1, network_facts(config))(IMAGES[:, :1]).shape == (2, 5)


def test_unknown_option_is_named(saved):
    with pytest.raises(ValueError, match="ViTForImageClassification has no option 'dephth'"):
        start(saved[1], 5, options={"dephth": 1})


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"channels": 1}, "patch_embeddings"),
        ({"options": {"num_hidden_layers": 1}}, r"layers?\.1"),
        ({"options": {"num_hidden_layers": 3}}, r"layers?\.2"),
        ({"options": {"intermediate_size": 48}}, r"layers?\.0"),
    ],
    ids=str,
)
def test_weights_that_do_not_fit_are_refused(saved, settings, name):
    with pytest.raises(ValueError, match=rf"the weights in {saved[1]} do not fit: .*such as .*{name}"):
        start(saved[1], 5, **settings)


def test_architecture_that_transformers_lacks_is_named(saved, tmp_path):
    shutil.copytree(saved[1], tmp_path / "vit")
    rewrite(tmp_path / "vit", architectures=["ViTForTelepathy"])
    with pytest.raises(ValueError, match="this version of transformers has no ViTForTelepathy"):
        start(tmp_path / "vit", 5)


@pytest.mark.parametrize("changes", [{"architectures": None}, {"architectures": []}], ids=str)
def test_configuration_that_does_not_say_what_it_is_is_refused(saved, tmp_path, changes):
    shutil.copytree(saved[1], tmp_path / "vit")
    rewrite(tmp_path / "vit", **changes)
    with pytest.raises(ValueError, match=r"vit/config\.json has no model_type and architectures"):
        network_facts(NetworkConfig(str(tmp_path / "vit")))


def test_preprocessing_is_read_where_the_folder_has_it(tmp_path):
    assert read_preprocessing(str(tmp_path)) == {}
    (tmp_path / "preprocessor_config.json").write_text('{"image_mean": [0.5, 0.4, 0.3], "size": 224}')
    assert read_preprocessing(str(tmp_path)) == {"mean": [0.5, 0.4, 0.3]}


def test_converted_network_starts_as_its_original_and_castling_attention_takes_over(saved):
    host, folder = saved
    network, original = start(folder, 5, convert=ConvertConfig(calibrate=0))
    assert len(converted_attentions(network)) == 2
    for one in (network, original):
        torch.testing.assert_close(one(IMAGES), host(IMAGES).logits)
    set_blend(network, 1.0)
    assert not torch.allclose(network(IMAGES), host(IMAGES).logits, atol=1e-3)
    larger = torch.randn(1, 3, 64, 64)
    assert network(larger).shape == (1, 5)
