import pytest
import timm
import torch
from timm.layers import Attention, AttentionPoolLatent
from torch import nn

from castling import AttentionConfig, CastlingAttention
from castling.conversion.inspection import preview


def vit(**kwargs):
    sizes = {"img_size": 32, "patch_size": 4, "embed_dim": 16, "depth": 3, "num_heads": 2, "num_classes": 5}
    return timm.create_model("vit_tiny_patch16_224", **sizes, **kwargs)


def test_the_table():
    model = nn.Sequential(vit(qk_norm=True), AttentionPoolLatent(16))
    lines = str(preview(model, only=["0.blocks.0.attn", "1"])).splitlines()
    assert [line.split() for line in lines[:2]] == [
        ["layer", "attention", "action", "notes"],
        ["0.blocks.0.attn", "Attention", "replace", "q/k", "norm", "is", "kept"],
    ]
    assert lines[2].endswith("keep     not asked for")
    assert lines[4].endswith("keep     no adapter knows it")
    assert lines[5] == "1 replace, 3 keep, 0 refuse"


def test_layers_in_order_with_their_family():
    previewed = preview(vit())
    assert previewed.names("replace") == ["blocks.0.attn", "blocks.1.attn", "blocks.2.attn"]
    assert {layer.family for layer in previewed.layers} == {"timm ViT, DeiT, DeiT-3"}
    assert previewed.names("keep") == previewed.names("refuse") == []


def test_patterns():
    assert preview(vit(), only="blocks.[12].*").names("replace") == ["blocks.1.attn", "blocks.2.attn"]
    assert preview(vit(), only=["blocks.0.attn"]).names("keep") == ["blocks.1.attn", "blocks.2.attn"]
    with pytest.raises(ValueError, match=r"no attention has the name 'block.0.attn'; did you mean 'blocks.0.attn'"):
        preview(vit(), only=["block.0.attn"])
    with pytest.raises(ValueError, match="no attention has the name 'x'; there are 3"):
        preview(vit(), only="x")


def test_nothing_to_convert_lists_the_families():
    with pytest.raises(ValueError, match=r"found no attention to convert\. Supported: timm ViT.*MultiheadAttention"):
        preview(nn.Linear(2, 2)).check()
    with pytest.raises(ValueError, match=r"only AttentionPoolLatent\. Supported"):
        preview(AttentionPoolLatent(16)).check()


def test_castling_attention_is_refused():
    previewed = preview(nn.Sequential(CastlingAttention(16, 2)))
    assert previewed.names("refuse") == ["0"]
    with pytest.raises(ValueError, match=r"cannot convert 0: it is castling attention already\. Nothing was changed"):
        previewed.check()


def test_a_subclass_with_its_own_forward_is_refused():
    class Louder(Attention):
        def forward(self, x, *args, **kwargs):
            return 2 * super().forward(x, *args, **kwargs)

    class Same(Attention):
        pass

    previewed = preview(nn.Sequential(Louder(16, 2), Same(16, 2)))
    assert previewed.names("refuse") == ["0"]
    assert previewed.names("replace") == ["1"]
    with pytest.raises(ValueError, match="0: a forward of its own, which may do something else"):
        previewed.check()
    patched = Attention(16, 2)
    patched.forward = lambda x: x
    assert preview(patched).names("refuse") == [""]


def test_refusals_name_one_layer_and_count_the_others():
    model = nn.Sequential(*(CastlingAttention(16, 2) for _ in range(3)))
    with pytest.raises(ValueError, match="cannot convert 0 and 2 more: it is castling attention already"):
        preview(model).check()


def test_a_grid_must_be_known():
    grid = AttentionConfig(local_conv="grid", local_conv_size=3)
    assert preview(vit(), grid).names("replace")
    with pytest.raises(ValueError, match="self_attn: local_conv='grid', as the grid of its tokens is not known"):
        preview(nn.TransformerEncoderLayer(16, 2), grid).check()
    with pytest.raises(ValueError, match="local_conv='grid'"):
        preview(Attention(16, 2), grid).check()


def test_shared_modules_are_listed_once():
    attention = Attention(16, 2)
    assert preview(nn.Sequential(attention, attention)).names("replace") == ["0"]


def test_a_preview_runs_on_the_meta_device():
    with torch.device("meta"):
        assert len(preview(vit()).layers) == 3
