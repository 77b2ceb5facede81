import pytest
import timm
import torch
from safetensors.torch import save_file

from castling import AttentionConfig, CastlingAttention, is_castled
from castling.models.levit_attention import LevitDesign
from castling.models.pretrained import NEW_PARAMETERS
from castling.tasks.classification.model import ModelConfig, build_model

NAME = "castling_deit_tiny_patch16_224"
TINY = {"img_size": 32, "patch_size": 4, "embed_dim": 32, "depth": 1, "num_heads": 2}


def build(seed=0, num_classes=10, channels=1, name=NAME, options=TINY, **settings):
    torch.manual_seed(seed)
    return build_model(ModelConfig(name, options=options, **settings), num_classes, channels)


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
        ModelConfig(name)


@pytest.mark.parametrize(
    "settings", [{"kernel": "softmax"}, {"attention": AttentionConfig()}, {"design": LevitDesign()}], ids=str
)
def test_attention_settings_of_other_models_are_refused(settings):
    [given] = settings
    with pytest.raises(ValueError, match=f"{given}: only Castling models have these; test_vit is not one of them"):
        ModelConfig("test_vit", **settings)


@pytest.mark.parametrize("option", [{"dephth": 2}, {"depth": "two"}, {"num_heads": 5}, {"num_classes": 3}], ids=str)
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
