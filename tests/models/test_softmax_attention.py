import copy
from dataclasses import replace

import pytest
import timm
import torch
from timm.models import create_feature_extractor
from timm.models.mvitv2 import MultiScaleVit, model_cfgs

from castling.models.levit import PLAIN_LEVIT
from castling.models.softmax_attention import fuse_mvitv2, plain_levit


def make_mvitv2():
    cfg = replace(model_cfgs["mvitv2_tiny"], depths=(1, 1, 1, 1), rel_pos_type="none")
    return MultiScaleVit(cfg, img_size=96, num_classes=10).eval()


def test_mvitv2_fused_is_timms_without_relative_positions():
    host = make_mvitv2()
    with torch.no_grad():
        for name, weight in host.named_parameters():
            if "qkv" in name or "pool" in name:
                weight.mul_(5)  # attention that is far from uniform
    fused = fuse_mvitv2(copy.deepcopy(host))
    for size in (96, 80):
        image = torch.randn(2, 3, size, size)
        torch.testing.assert_close(fused(image), host(image), rtol=1e-5, atol=1e-5)


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


@pytest.mark.parametrize("make", [lambda: plain_levit(make_levit()), lambda: fuse_mvitv2(make_mvitv2())])
def test_traced_by_fx_they_give_the_same_numbers_at_every_size(make):
    model = make()
    graph = create_feature_extractor(model, ["head"])
    for size in (96, 64):
        image = torch.randn(2, 3, size, size)
        assert torch.equal(graph(image)["head"], model(image))
