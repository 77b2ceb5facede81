"""What each adapter refuses, by name, and what it says about what it takes."""

import inspect

import pytest
import timm
import torch
from hosts import beit, hugging_face, levit, make_host, mvitv2, timm_vit, tiny_vit
from timm.layers import Attention, AttentionRope
from timm.models.cait import TalkingHeadAttn
from torch import nn

from castling import AttentionConfig
from castling.conversion.converted import converted_attentions, set_blend
from castling.conversion.inspection import preview
from castling.conversion.replace import convert


def rotary():
    return nn.Sequential(AttentionRope(16, 2))


def gated():
    if "gated" not in Attention.__init__.__code__.co_varnames:
        pytest.skip("this timm has no gates")
    return nn.Sequential(Attention(16, 2, gated=True))


def words():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    return transformers.CLIPTextModel(transformers.CLIPTextConfig(vocab_size=9, **sizes))


REFUSED = {
    "attention among words": words,
    "rotary position": rotary,
    "talking heads": lambda: nn.Sequential(TalkingHeadAttn(16, 2)),
    "gate on the output": gated,
    "position biases that layers share": lambda: beit(use_rel_pos_bias=False, use_shared_rel_pos_bias=True)[0],
    "pool_first": lambda: mvitv2(pool_first=True)[0],
    "pooling of mode 'max'": lambda: mvitv2(mode="max")[0],
    "attention of a decoder": lambda: nn.TransformerDecoderLayer(16, 2),
    "kdim=8, vdim=8": lambda: nn.Sequential(nn.MultiheadAttention(16, 2, kdim=8, vdim=8)),
    "add_bias_kv": lambda: nn.Sequential(nn.MultiheadAttention(16, 2, add_bias_kv=True)),
    "add_zero_attn": lambda: nn.Sequential(nn.MultiheadAttention(16, 2, add_zero_attn=True)),
}


def check_refused(model, feature):
    was = [(name, id(module)) for name, module in model.named_modules()]
    with pytest.raises(ValueError, match=rf"(?s)cannot convert.*{feature}.*Nothing was changed"):
        convert(model)
    assert [(name, id(module)) for name, module in model.named_modules()] == was


@pytest.mark.parametrize("feature", REFUSED)
def test_refused_by_name(feature):
    check_refused(REFUSED[feature](), feature)


def test_eva_is_refused():
    sizes = {"img_size": 32, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2}
    check_refused(timm.create_model("eva02_tiny_patch14_224", **sizes), "rotary position")


def test_dinov3_is_refused():
    check_refused(hugging_face("DINOv3ViT")[0], "rotary position")


def test_an_older_transformers_that_gives_maps_is_refused(monkeypatch):
    model = hugging_face("ViT")[0]

    def forward(self, hidden_states, head_mask=None, output_attentions=False):
        return (hidden_states,)

    host = next(module for module in model.modules() if type(module).__name__ == "ViTAttention")
    monkeypatch.setattr(type(host), "forward", forward)
    check_refused(model, "before 4.57")


def test_calls_with_masks():
    mask = torch.ones(65, 65, dtype=torch.bool)
    vit = convert(timm_vit()[0])
    with pytest.raises(ValueError, match="knows no masks on its logits; got attn_mask"):
        vit.blocks[0].attn(torch.randn(1, 65, 16), attn_mask=mask)
    with pytest.raises(ValueError, match="got is_causal"):
        vit.blocks[0].attn(torch.randn(1, 65, 16), is_causal=True)
    beit_attention = convert(beit()[0]).blocks[0].attn
    with pytest.raises(ValueError, match="got shared_rel_pos_bias"):
        beit_attention(torch.randn(1, 65, 16), torch.zeros(1, 2, 65, 65))


def test_calls_of_hugging_face_with_masks_or_for_maps():
    model = convert(make_host("hf vit").model)
    x, attention = torch.randn(1, 65, 16), next(iter(converted_attentions(model).values()))
    mask = "attention_mask" if hasattr(attention, "q_proj") else "head_mask"
    with pytest.raises(ValueError, match=f"got {mask}"):
        attention(x, torch.ones(1, 2, 65, 65))
    with pytest.raises(ValueError, match="output_attentions"):
        attention(x, output_attentions=True)
    out = attention(x)
    if mask == "attention_mask":
        out, attention_map = out
        assert attention_map is None
    assert out.shape == (1, 65, 16)


def test_a_mask_reaches_the_attention_of_hugging_face():
    host = make_host("hf vit")
    if "attention_mask" not in inspect.signature(host.model.forward).parameters:
        pytest.skip("the ViT of this transformers takes no masks")
    with pytest.raises(ValueError, match="got attention_mask"):
        convert(host.model)(host.x, attention_mask=torch.tensor([[1] * 60 + [0] * 5] * 2))


def test_calls_of_torch_with_masks_maps_or_other_keys():
    host = make_host("torch encoder")
    model, padding = convert(host.model), torch.zeros(2, 64, dtype=torch.bool)
    padding[:, 60:] = True
    for grad in (True, False):  # without gradients torch makes a nested tensor of padded tokens
        with torch.set_grad_enabled(grad), pytest.raises(ValueError, match="masks"):
            model(host.x, src_key_padding_mask=padding)
    attention, x = model.layers[0].self_attn, host.x
    with pytest.raises(ValueError, match="need_weights"):
        attention(x, x, x)
    with pytest.raises(ValueError, match="cross attention"):
        attention(x, x, x.clone(), need_weights=False)
    with pytest.raises(ValueError, match="got attn_mask"):
        attention(x, x, x, need_weights=False, attn_mask=torch.zeros(64, 64))
    batch, _ = attention(x, x, x, need_weights=False)
    first = x[0]
    alone, _ = attention(first, first, first, need_weights=False)
    torch.testing.assert_close(alone, batch[0])


def test_an_older_levit_does_not_tell_its_grid():
    model, x, _ = levit()
    before = model.eval()(x)
    vars(model.stages[0].blocks[0].attn).pop("resolution", None)  # timm 1.0.22 has none
    convert(model, AttentionConfig(local_conv="grid", local_conv_size=3))
    torch.testing.assert_close(model(x), before, atol=1e-5, rtol=0)
    set_blend(model, 1)
    assert model(x).isfinite().all()


def test_notes_say_what_ends_with_the_softmax():
    ends = "position biases go to softmax only and end with it"
    assert preview(beit()[0]).layers[0].notes == (ends,)  # 65 keys
    assert preview(tiny_vit()[0]).layers[0].notes == (
        "windows of 7 x 7 tokens",
        ends,
        "a threshold of 0.02 never empties a mask over 49 keys",
    )
    relative = AttentionConfig(threshold=4, threshold_relative=True)
    assert {layer.notes for layer in preview(levit()[0], relative).layers} == {(ends,)}
    assert preview(mvitv2()[0]).layers[0].notes == ("relative positions go to softmax only and end with it",)
    assert preview(mvitv2(rel_pos_type="none")[0]).layers[0].notes == ()
    kept = preview(timm_vit(qk_norm=True, scale_attn_norm=True)[0]).layers[0].notes
    assert kept == ("q/k norm is kept", "output norm is kept")
