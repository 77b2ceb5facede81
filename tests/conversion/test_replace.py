import copy
import runpy
from pathlib import Path

import pytest
import timm
import torch
from timm.layers import Attention
from torch import nn

from castling import AttentionConfig, castle, castled
from castling.conversion.adapters import ADAPTERS, Adapter, register_adapter
from castling.conversion.calibration import calibrate, fold_scale
from castling.conversion.converted import (
    ConvertedAttention,
    check_blend_done,
    converted_attentions,
    set_blend,
)
from castling.conversion.replace import convert, unconvert
from castling.models.deit import CastlingVisionTransformer

SIZES = {"img_size": 32, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 5}
GRID = AttentionConfig(local_conv="grid", local_conv_size=3)


def types(model):
    return [type(module) for module in model.modules()]


def test_a_part_of_the_layers(vit, x):
    before = vit(x)
    convert(vit, only="blocks.1.attn", blend=1)
    assert list(converted_attentions(vit)) == ["blocks.1.attn"]
    assert isinstance(vit.blocks[0].attn, Attention)
    assert not torch.equal(vit(x), before)
    convert(vit, only="blocks.0.attn")
    assert [attention.blend for attention in converted_attentions(vit).values()] == [0, 1]
    with pytest.raises(ValueError, match="already"):
        convert(vit, only="blocks.0.attn")


def test_a_copy_leaves_the_model(vit, x):
    before = vit(x)
    model = convert(vit, blend=1, inplace=False)
    assert not any(isinstance(module, ConvertedAttention) for module in vit.modules())
    assert torch.equal(vit(x), before)
    assert not torch.equal(model(x), before)


def test_an_attention_alone():
    attention = Attention(16, 2)
    model = convert(attention)
    assert isinstance(model, ConvertedAttention)
    assert model.qkv.weight is attention.qkv.weight
    assert unconvert(model) is attention


def test_a_shared_attention_stays_shared():
    attention = Attention(16, 2)
    model = convert(nn.ModuleList([attention, nn.Sequential(attention)]))
    assert model[0] is model[1][0]
    unconvert(model)
    assert model[0] is model[1][0] is attention


def test_a_failure_changes_nothing(vit, x):
    before, was = vit(x), types(vit)
    vit.blocks[1].attn.forward = vit.blocks[1].attn.forward
    with pytest.raises(ValueError, match=r"cannot convert blocks\.1\.attn: a forward of its own"):
        convert(vit)
    del vit.blocks[1].attn.forward
    with pytest.raises(ValueError, match="blend must lie in"):
        convert(vit, GRID, blend=2)
    with pytest.raises(ValueError, match="found no attention"):
        convert(nn.Linear(2, 2))
    assert types(vit) == was
    vit.blocks[1].attn.local_conv = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="the host has a part 'local_conv'"):
        convert(vit, GRID)
    del vit.blocks[1].attn.local_conv
    assert types(vit) == was
    assert not vit.patch_embed._forward_pre_hooks
    assert torch.equal(vit(x), before)


def test_an_optimizer_made_before_goes_on(vit, x):
    optimizer = torch.optim.SGD(vit.parameters(), lr=0.1)
    convert(vit, blend=0.5)
    before = vit(x)
    before.square().sum().backward()
    optimizer.step()
    assert not torch.equal(vit(x), before)
    trained = vit.blocks[0].attn.qkv.weight.clone()
    assert torch.equal(unconvert(vit).blocks[0].attn.qkv.weight, trained)


def test_what_replaced_a_part_goes_back_with_the_rest(vit):
    convert(vit)
    vit.blocks[0].attn.proj = other = nn.Linear(16, 16)
    vit.half()
    unconvert(vit)
    assert vit.blocks[0].attn.proj is other
    assert {parameter.dtype for parameter in vit.parameters()} == {torch.float16}


def test_new_parts_follow_the_host(vit):
    convert(vit.double().train())
    assert vit.blocks[0].attn.local_conv.weight.dtype == torch.float64
    assert all(module.training for module in vit.modules())
    unconvert(vit.eval())
    assert not any(module.training for module in vit.modules())


def test_two_roads_to_the_same_network(vit, x):
    convert(vit, blend=1)
    calibrate(vit, [x])
    with torch.no_grad():
        for attention in converted_attentions(vit).values():
            attention.local_conv.weight.normal_()
    out = vit(x)
    fold_scale(vit)
    native = CastlingVisionTransformer(mlp_conv_size=0, qkv_bias=True, **SIZES).eval()
    native.load_state_dict(vit.state_dict())
    torch.testing.assert_close(native(x), out, atol=1e-5, rtol=0)


def test_the_grid_of_any_image(vit):
    rectangle = torch.randn(1, 3, 32, 64)
    before = vit(rectangle)
    convert(vit, GRID)
    torch.testing.assert_close(vit(rectangle), before, atol=1e-5, rtol=0)
    set_blend(vit, 1)
    with torch.no_grad():
        for attention in converted_attentions(vit).values():
            attention.local_conv.weight.normal_()
    for model in (vit, copy.deepcopy(vit), castle(vit)):
        model(torch.randn(1, 3, 32, 32))
        assert model(rectangle).isfinite().all()
        assert {attention.grid_note.grid for attention in converted_attentions(model).values()} == {(8, 16)}
    fast = castle(vit)
    program = torch.export.export(fast, (rectangle,), strict=False)
    torch.testing.assert_close(program.module()(rectangle), fast(rectangle), atol=1e-5, rtol=0)
    unconvert(vit)
    assert not vit.patch_embed._forward_pre_hooks
    assert torch.equal(vit(rectangle), before)


def test_castling_waits_for_the_blend(vit, x):
    convert(vit, blend=0.5)
    message = r"2 converted attentions \(blocks.0.attn, blocks.1.attn\) still hold the host's softmax"
    with pytest.raises(ValueError, match=message):
        castle(vit)
    assert all(attention.aux is not None for attention in converted_attentions(vit).values())
    with pytest.raises(ValueError, match=message):
        check_blend_done(vit)
    set_blend(vit, 1)
    check_blend_done(vit)
    fast = castle(vit)
    set_blend(vit, 0.5)
    with castled(vit):  # for a moment: what castling would give at the end
        assert torch.equal(vit(x), fast(x))


def test_the_example_of_an_adapter():
    before = list(ADAPTERS)
    try:
        runpy.run_path(str(Path(__file__).parents[2] / "examples" / "own_adapter.py"), run_name="__main__")
    finally:
        ADAPTERS[:] = before


def test_a_family_of_ones_own():
    class Mine(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(16, 48)

        def forward(self, x):
            return x

    class StandIn(ConvertedAttention):
        def forward(self, x):
            q, k, v = self.qkv(x).unflatten(-1, (3, 2, -1)).unbind(2)
            return self.attend(q, k, v).flatten(2)

    before = list(ADAPTERS)
    try:
        adapter = Adapter("mine", (Mine,), lambda site, config: StandIn(site.module, 2, config))
        register_adapter(adapter)
        register_adapter(adapter)
        assert [adapter, *before] == ADAPTERS
        model = convert(nn.Sequential(Mine()))
        assert model(torch.randn(1, 9, 16)).shape == (1, 9, 16)
    finally:
        ADAPTERS[:] = before


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224", "deit3_small_patch16_224"])
@pytest.mark.parametrize("local_conv", ["tokens", "grid"])
def test_a_vit_of_one_size_takes_others(name, local_conv):
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2, "num_classes": 3}
    fixed = timm.create_model(name, **sizes).eval()
    free = timm.create_model(name, **sizes, dynamic_img_size=True).eval()
    free.load_state_dict(fixed.state_dict())
    own, other = torch.randn(2, 3, 32, 32), torch.randn(2, 3, 64, 40)
    before = fixed(own)
    config = AttentionConfig(aux=False, local_conv=local_conv, local_conv_size=3)
    convert(fixed, config)
    assert torch.allclose(fixed(own), before, atol=1e-5)
    assert torch.allclose(fixed(other), free(other), atol=1e-5)
    set_blend(fixed, 1.0)
    assert castle(fixed)(other).shape == (2, 3)
    unconvert(fixed)
    assert torch.equal(fixed(own), before)
    with pytest.raises(AssertionError, match="doesn't match model"):
        fixed(other)
