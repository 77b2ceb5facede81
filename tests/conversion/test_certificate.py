"""The certificate on models whose masks are empty, open, or were never open."""

import json

import pytest
import timm
import torch

import castling
from castling import AttentionConfig
from castling.attention import branches
from castling.conversion import certify

OPTIONS = {"img_size": 32, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 10}


def model_with(threshold, sharpness=1.0):
    config = AttentionConfig(threshold=threshold)
    model = timm.create_model("castling_deit_tiny_patch16_224", attention=config, **OPTIONS)
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight.mul_(sharpness)
            block.attn.proj.weight.mul_(sharpness)
        model.head.weight.mul_(sharpness)
    return model


@pytest.fixture
def batches():
    return [
        {"image": torch.randn(16, 3, 32, 32), "target": torch.randint(0, 10, (16,))},
        (torch.randn(4, 3, 32, 32), torch.tensor([1, 2, -1, 3])),
    ]


def test_an_empty_mask_is_free(batches):
    certificate = certify(model_with(1.0, sharpness=30), batches)
    assert certificate.verdict == "free"
    assert (certificate.gap, certificate.agreement, certificate.largest_difference) == (0, 1, 0)
    assert certificate.num_examples == 19
    assert certificate.state_dict_equal
    assert certificate.quadratic_tensors == []
    assert certificate.macs_castled < certificate.macs_with_branch
    json.dumps(certificate.to_json())


def test_an_open_mask_is_cheap_or_not_by_the_tolerance(batches):
    model = model_with(0.0, sharpness=30)
    with torch.no_grad():  # labels that the model with its branch gets right
        images = batches[0]["image"]
        model.eval()
        labelled = [{"image": images, "target": model(images).argmax(-1)}]
    certificate = certify(model, labelled, tolerance=100)
    assert certificate.verdict == "cheap"
    assert certificate.with_branch == 1
    assert certificate.gap > 0
    assert certificate.largest_difference > certificate.median_difference > 0
    assert certificate.agreement == pytest.approx(1 - certificate.gap / 100)
    assert all(layer.opened and min(layer.occupancy) > 0 for layer in certificate.layers)
    refused = certify(model, labelled, tolerance=certificate.gap / 2)
    assert refused.verdict == "not yet"
    assert any("threshold that closes" in line for line in refused.advice)


def test_a_gain_is_cheap(batches):
    model = model_with(0.0, sharpness=30)
    images = batches[0]["image"]
    with torch.no_grad():
        labelled = [{"image": images, "target": castling.castle(model).eval()(images).argmax(-1)}]
    certificate = certify(model, labelled, tolerance=0)
    assert certificate.gap < 0
    assert certificate.verdict == "cheap"


def test_a_mask_that_never_opened_is_said(batches):
    certificate = certify(model_with(0.9), batches)
    assert not any(layer.opened for layer in certificate.layers)
    assert any("never opened in 2 of 2 attentions" in line for line in certificate.advice)


def test_history_tells_that_it_was_open(batches):
    history = [(0, {"blocks.0.attn": [0.0, 0.0]}), (10, {"blocks.0.attn": [0.2, 0.1], "blocks.1.attn": [0.0, 0.3]})]
    first, second = certify(model_with(0.9), batches, history=history).layers
    assert (first.peak, second.peak) == ([0.2, 0.1], [0.0, 0.3])
    assert first.history == [(0, 0.0), (10, pytest.approx(0.15))]
    assert first.opened
    assert second.opened


def test_whether_the_mask_could_empty_is_per_layer(batches):
    certificate = certify(model_with(0.01), batches)
    assert [layer.can_empty for layer in certificate.layers] == [False, False]
    assert [layer.num_tokens for layer in certificate.layers] == [65, 65]
    assert any("cannot become empty" in line for line in certificate.advice)


def test_the_model_stays_as_it_is(batches):
    model = model_with(0.02).train()
    certify(model, batches)
    assert model.training
    assert len(branches(model)) == 2


@pytest.mark.parametrize("name", ["castling_levit_128", "castling_mvitv2_tiny"])
def test_other_families(name):
    model = timm.create_model(name, num_classes=10)
    certificate = certify(model, [(torch.randn(2, 3, 64, 64), torch.tensor([0, 1]))], tolerance=100)
    assert certificate.quadratic_tensors == []
    assert len(certificate.layers) == len(branches(model))


def test_a_network_that_keeps_a_map_is_found_out(batches):
    config = AttentionConfig(kernel="softmax", output_norm="none", aux=True, threshold=1.0)
    model = timm.create_model("castling_deit_tiny_patch16_224", attention=config, **OPTIONS)
    certificate = certify(model, batches)
    assert certificate.quadratic_tensors
    assert any("N x N" in line for line in certificate.advice)


def test_refusals(batches):
    with pytest.raises(ValueError, match="no auxiliary branch"):
        certify(castling.castle(model_with(0.02)), batches)
    with pytest.raises(ValueError, match="tolerance must be at least 0; got -1"):
        certify(model_with(0.02), batches, tolerance=-1)
    with pytest.raises(ValueError, match="no readable picture"):
        certify(model_with(0.02), [(torch.randn(1, 3, 32, 32), torch.tensor([-1]))])
