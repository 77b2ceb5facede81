import copy
from dataclasses import replace

import pytest
import timm
import torch
from timm.models.mvitv2 import MultiScaleVit, model_cfgs

from castling.measure import count_macs, quadratic_tensors
from castling.models.baselines import NAMES, fuse_mvitv2, plain_levit, softmax_baseline
from castling.models.levit import PLAIN_LEVIT

DEIT = "castling_deit_tiny_patch16_224"
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


def test_mvitv2_fused_is_timms_without_relative_positions():
    cfg = replace(model_cfgs["mvitv2_tiny"], depths=(1, 1, 1, 1), rel_pos_type="none")
    host = MultiScaleVit(cfg, img_size=96, num_classes=10).eval()
    with torch.no_grad():
        for name, weight in host.named_parameters():
            if "qkv" in name or "pool" in name:
                weight.mul_(5)  # attention that is far from uniform
    fused = fuse_mvitv2(copy.deepcopy(host))
    for size in (96, 80):
        image = torch.randn(2, 3, size, size)
        torch.testing.assert_close(fused(image), host(image), rtol=1e-5, atol=1e-5)


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


def test_mvitv2_with_relative_positions_is_not_fused():
    with pytest.raises(ValueError, match="no relative positions"):
        fuse_mvitv2(MultiScaleVit(replace(model_cfgs["mvitv2_tiny"], depths=(1, 1, 1, 1))))


def make_levit():
    host = timm.create_model(
        "castling_levit_128", design=PLAIN_LEVIT, mlp_conv_size=0, depth=(1, 1, 1), num_classes=10, img_size=96
    )
    with torch.no_grad():
        for name, weight in host.named_parameters():
            if "attention_biases" in name:
                weight.normal_(std=3)
            if name.endswith("proj.ln.bn.weight"):
                weight.fill_(1.0)  # LeViT starts with attention switched off
        for module in host.modules():
            if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
                module.momentum = None
        host.train()(torch.randn(8, 3, 96, 96))  # so that norms fit their inputs, and no signal fades
    return host.eval()


@pytest.mark.parametrize("fused", [True, False])
def test_levit_keeps_its_numbers_when_biases_are_laid_out(fused):
    host = make_levit()
    fast = plain_levit(copy.deepcopy(host), fused)
    flat = copy.deepcopy(host)
    for name, weight in flat.named_parameters():
        if "attention_biases" in name:
            weight.data.zero_()
    for size in (96, 64):
        image = torch.randn(2, 3, size, size)
        torch.testing.assert_close(fast(image), host(image), rtol=1e-4, atol=1e-4)
        assert (flat(image) - host(image)).abs().max() > 1e-2  # so that biases matter here


@pytest.mark.parametrize("name", [DEIT, "castling_levit_128"])
def test_only_the_fused_form_hides_its_maps(name):
    # 256 tokens; no weight of these small networks is as large in two axes but LeViT's, whose maps are 4 x 256 x 256.
    options = {"img_size": 256, "num_classes": 10}
    options |= {"depth": 1, "embed_dim": 32, "num_heads": 2} if name == DEIT else {"depth": (1, 1, 1)}
    image = torch.randn(1, 3, 256, 256)
    with torch.no_grad():
        unfused = softmax_baseline(name, fused=False, **options)
        fused = softmax_baseline(name, **options)
        for model, expected in ((unfused, True), (fused, False)):
            found = quadratic_tensors(lambda model=model: model(image), 256)
            assert any("softmax.default" in operator for operator in found) is expected
            assert any("scaled_dot_product" in operator for operator in found) is not expected


def test_unknown_names_are_named():
    with pytest.raises(ValueError, match=r"unknown model 'castling_deit_tiny': .*'castling_deit_tiny_patch16_224'"):
        softmax_baseline("castling_deit_tiny")
    assert set(NAMES) <= set(timm.list_models("castling_*"))
