import pytest
import timm
import torch
from timm.models.mvitv2 import MultiScaleVit

from castling.attention import HeadMixer
from castling.measure import count_macs, quadratic_tensors
from castling.models.baselines import NAMES, softmax_baseline, softmax_twin

DEIT = "castling_deit_tiny_patch16_224"
LCNET = "castling_lcnet_vit_small"
TINY = {"img_size": 32, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 10}


def macs(name, **options):
    with torch.device("meta"):
        return count_macs(softmax_baseline(name, **options), torch.empty(1, 3, 224, 224)).total / 1e9


@pytest.mark.parametrize(
    ("name", "fused", "unfused"),
    [
        # As the paper counts, less softmax in LeViT and norms in MViTv2.
        ("castling_deit_tiny_patch16_224", 1.254, 1.254),
        ("castling_deit_base_patch16_224", 17.56, 17.56),
        ("castling_levit_128", None, 0.405),
        ("castling_levit_256", None, 1.127),
        ("castling_mvitv2_tiny", 4.642, 4.677),
        ("castling_mvitv2_base", 10.03, 10.10),
    ],
)
def test_macs_are_those_of_the_papers_baselines(name, fused, unfused):
    assert macs(name, fused=False) == pytest.approx(unfused, rel=1e-3)
    if fused is not None:
        assert macs(name) == pytest.approx(fused, rel=1e-3)


def test_fused_levit_also_counts_the_zeros_beside_its_keys():
    stages = 4 * 32 * (4 * 196**2 + 6 * 49**2 + 8 * 16**2)
    down_samplers = 96 * (8 * 49 * 196 + 12 * 16 * 49)
    difference = macs("castling_levit_256") - macs("castling_levit_256", fused=False)
    assert round(difference * 1e9) == stages + down_samplers


def test_deit_is_timms_with_and_without_fusion():
    torch.manual_seed(0)
    fused = softmax_baseline(DEIT, **TINY)
    unfused = softmax_baseline(DEIT, fused=False, **TINY)
    unfused.load_state_dict(fused.state_dict())
    host = timm.create_model("deit_tiny_patch16_224", **TINY).eval()
    host.load_state_dict(fused.state_dict())
    image = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(fused(image), host(image))
    torch.testing.assert_close(unfused(image), host(image), rtol=1e-5, atol=1e-5)
    assert [model.blocks[1].attn.fused_attn for model in (fused, unfused)] == [True, False]


def test_deit_takes_other_sizes_than_its_own():
    assert softmax_baseline(DEIT, **TINY)(torch.randn(1, 3, 48, 40)).shape == (1, 10)


def test_mvitv2_unfused_is_timms_at_the_size_it_is_asked_for():
    options = {"depths": (1, 1, 1, 1), "num_classes": 10, "img_size": 96}
    unfused = softmax_baseline("castling_mvitv2_tiny", fused=False, **options)
    assert type(unfused) is MultiScaleVit
    assert unfused.stages[0].blocks[0].attn.rel_pos_type == "spatial"
    assert unfused(torch.randn(1, 3, 96, 96)).shape == (1, 10)
    fused = softmax_baseline("castling_mvitv2_tiny", **options)
    assert set(unfused.state_dict()) - set(fused.state_dict()) == {
        name for name in unfused.state_dict() if "rel_pos" in name
    }


def test_hybrids_have_nothing_of_ours_and_compute_the_same_unfused():
    torch.manual_seed(0)
    fused = softmax_baseline("castling_esnet_vit_small", num_classes=10)
    unfused = softmax_baseline("castling_esnet_vit_small", fused=False, num_classes=10)
    assert not [key for key in fused.state_dict() if "local_conv" in key or "mlp.conv" in key]
    unfused.load_state_dict(fused.state_dict())
    image = torch.randn(2, 3, 96, 64)
    torch.testing.assert_close(unfused(image), fused(image), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [DEIT, "castling_levit_128", LCNET])
def test_only_the_fused_form_hides_its_maps(name):
    # 256 tokens; a weight of these small networks may be as large in two axes, but is no softmax.
    small = {"depth": 1, "embed_dim": 32, "num_heads": 2} if name == DEIT else {"depth": (1, 1, 1)}
    options = {"num_classes": 10} | ({} if name == LCNET else {"img_size": 256, **small})
    image = torch.randn(1, 3, 256, 256)
    with torch.no_grad():
        unfused = softmax_baseline(name, fused=False, **options)
        fused = softmax_baseline(name, **options)
        for model, expected in ((unfused, True), (fused, False)):
            found = quadratic_tensors(lambda model=model: model(image), 256)
            assert any("softmax.default" in operator for operator in found) is expected
            assert any("scaled_dot_product" in operator for operator in found) is not expected


@pytest.mark.parametrize("name", [DEIT, "castling_levit_128", "castling_mvitv2_tiny", LCNET])
def test_the_twin_is_the_castling_model_but_for_its_attention(name):
    with torch.device("meta"):
        twin, model = softmax_twin(name), timm.create_model(name)
    assert not twin.training
    assert type(twin) is type(model)
    assert {module.config.kernel for module in twin.modules() if isinstance(module, HeadMixer)} == {"softmax"}
    missing = {key for key in model.state_dict() if key not in twin.state_dict()}
    assert missing
    assert all(key.endswith("local_conv.weight") for key in missing)


@pytest.mark.parametrize("make", [softmax_baseline, softmax_twin])
def test_unknown_names_are_named(make):
    with pytest.raises(ValueError, match=r"unknown model 'castling_deit_tiny': .*'castling_deit_tiny_patch16_224'"):
        make("castling_deit_tiny")


def test_there_is_a_baseline_for_every_registered_name():
    assert set(NAMES) == set(timm.list_models("castling_*"))
