import json
import subprocess
import sys

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from tiny_segmenter import NAME, SIZE, VIT, tiny_config, tiny_segmenter, with_some_scores

import castling

transformers = pytest.importorskip("transformers")

from castling.tasks.segmentation.hub import (  # noqa: E402 - it needs transformers
    CastlingBackbone,
    CastlingBackboneConfig,
    CastlingMask2Former,
    describe_segmenter,
    to_segmenter,
    to_transformers,
)

SMALL = {
    **{"feature_size": 32, "mask_feature_size": 32, "hidden_dim": 32, "num_attention_heads": 2, "dim_feedforward": 32},
    **{"encoder_feedforward_dim": 32, "encoder_layers": 1, "decoder_layers": 3, "num_queries": 4, "num_labels": 3},
}


def backbone_config(**options):
    return CastlingBackboneConfig(NAME, **{"options": VIT, "dim": 32, **options})


def same(one, other):
    names = ("class_queries_logits", "masks_queries_logits")
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in names)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kernel": "softmax"},
        {"attention": {"kernel": "relu_s", "local_conv": "grid", "local_conv_size": 3, "threshold": 0.1}},
    ],
)
def test_a_backbone_is_saved_and_read_again(tmp_path, options):
    backbone = CastlingBackbone(backbone_config(**options)).eval()
    assert isinstance(transformers.AutoBackbone.from_config(backbone.config), CastlingBackbone)
    assert backbone.channels == [32] * 4
    backbone.save_pretrained(tmp_path)
    again = CastlingBackbone.from_pretrained(tmp_path).eval()
    assert again.config.to_dict()["options"] == VIT
    images = torch.randn(1, 3, *SIZE)
    found = again(images).feature_maps
    assert [tuple(x.shape[-2:]) for x in found] == [(64 // s, 96 // s) for s in (4, 8, 16, 32)]
    for one, other in zip(found, backbone(images).feature_maps, strict=True):
        assert torch.equal(one, other)


@pytest.mark.slow
def test_transformers_own_mask2former_stands_on_it(tmp_path):
    config = transformers.Mask2FormerConfig(backbone_config=backbone_config(), **SMALL)
    network = transformers.Mask2FormerForUniversalSegmentation(config).eval()
    network.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["backbone_config"]["name"] == NAME
    again = transformers.Mask2FormerForUniversalSegmentation.from_pretrained(tmp_path).eval()
    images = torch.randn(2, 3, *SIZE)
    assert same(network(images), again(images))
    assert isinstance(again.model.pixel_level_module.encoder, CastlingBackbone)


@pytest.mark.parametrize("pixel_decoder", ["encoder_fpn", "deformable"])
def test_a_segmenter_goes_to_transformers_to_disk_and_back(tmp_path, pixel_decoder):
    segmenter = with_some_scores(tiny_segmenter("mask2former", pixel_decoder))
    to_transformers(segmenter, backbone_config()).save_pretrained(tmp_path)
    network = transformers.AutoModelForUniversalSegmentation.from_pretrained(tmp_path).eval()
    assert isinstance(network, CastlingMask2Former)
    images = torch.randn(2, 3, *SIZE)
    classes, masks = segmenter.decoder(segmenter.backbone(images))
    found = network(images)
    assert torch.equal(found.class_queries_logits, classes[-1])
    assert torch.equal(found.masks_queries_logits, masks[-1])
    again = to_segmenter(network)
    # The width of the light decoder is not transformers' to keep.
    assert again.config == tiny_config("mask2former", pixel_decoder, fpn_dim=again.config.fpn_dim)
    assert torch.equal(again(images), segmenter(images))


def test_a_castled_segmenter_comes_back_castled(tmp_path):
    branch = {"attention": castling.AttentionConfig(threshold=0.0)}
    segmenter = with_some_scores(tiny_segmenter("mask2former", vit=branch))
    config = backbone_config(attention={"threshold": 0.0})
    images = torch.randn(1, 3, *SIZE)
    for kept in (segmenter, castling.castle(segmenter)):
        to_transformers(kept, config).save_pretrained(tmp_path)
        again = to_segmenter(CastlingMask2Former.from_pretrained(tmp_path).eval())
        assert castling.is_castled(again) == castling.is_castled(kept)
        assert torch.equal(again(images), kept(images))
    assert config.attention == {"threshold": 0.0}


def test_weights_that_a_folder_lacks_are_new_and_the_others_are_kept(tmp_path):
    backbone = CastlingBackbone(backbone_config())
    backbone.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    lost = [name for name in weights if name.endswith(("qkv.weight", "pos_embed", "local_conv.weight"))]
    kept = {name: value for name, value in weights.items() if name not in lost}
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    again = CastlingBackbone.from_pretrained(tmp_path).state_dict()
    assert len(lost) == 3
    assert all(0.001 < float(again[name].std()) < 1 for name in lost)
    assert all(torch.equal(again[name], value) for name, value in kept.items())


def test_a_plain_vit_of_timm_is_a_backbone_too():
    backbone = CastlingBackbone(CastlingBackboneConfig("vit_tiny_patch16_224", options=VIT, dim=8)).eval()
    assert type(backbone.pyramid.vit) is type(timm.create_model("vit_tiny_patch16_224"))
    assert backbone(torch.zeros(1, 3, 32, 64)).feature_maps[0].shape == (1, 8, 8, 16)


def test_what_transformers_cannot_hold_is_refused():
    with pytest.raises(ValueError, match="Mask2Former's decoder only; got decoder='fpn'"):
        to_transformers(tiny_segmenter(dim=32), backbone_config())
    with pytest.raises(ValueError, match="maps have 64 channels, the configuration 32"):
        describe_segmenter(tiny_config("mask2former"), 3, backbone_config(dim=64))
    with pytest.raises(ValueError, match="not the one that is described"):
        to_transformers(tiny_segmenter("mask2former"), backbone_config(options={**VIT, "depth": 2}))


@pytest.mark.slow  # for its process
def test_the_package_is_imported_without_transformers():
    code = "import castling, castling.tasks.segmentation.losses, sys; assert 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
