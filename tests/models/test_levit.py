import itertools

import pytest
import timm
import torch
from torch import nn

from castling import AttentionConfig, castle
from castling.attention import KERNELS
from castling.models.levit import PLAIN_LEVIT
from castling.models.levit_attention import LevitDesign

SMALL = {"depth": (1, 1, 1), "num_classes": 10}


@pytest.mark.parametrize("size", [128, 192, 256, 384])
def test_plain_levit_is_timms(size):
    theirs = timm.create_model(f"levit_{size}", depth=(2, 1, 1)).eval()
    ours = timm.create_model(
        f"castling_levit_{size}", depth=(2, 1, 1), design=PLAIN_LEVIT, mlp_conv_size=0, distilled=True
    ).eval()
    for name, tensor in theirs.state_dict().items():  # timm starts residual branches at zero
        if tensor.is_floating_point():
            nn.init.uniform_(tensor, 0.5, 1.5) if "running_var" in name else nn.init.normal_(tensor, std=0.2)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 3, 224, 224)
    expected = theirs(x)
    assert expected.std() > 0.1
    torch.testing.assert_close(ours(x), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("pooling", "q_pooling"), itertools.product(["none", "feature", "token"], ["pre", "post"]))
def test_every_design_runs_with_every_kernel(pooling, q_pooling, kernel):
    design = LevitDesign(pooling, q_pooling, residual_q=q_pooling == "post")
    model = timm.create_model("castling_levit_128", design=design, kernel=kernel, **SMALL)
    logits = model(torch.randn(2, 3, 64, 96))
    assert logits.shape == (2, 10)
    logits.square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_down_sampled_attention_is_full_attention_at_the_places_that_stay():
    """With queries that are not changed by their pooling, the kept tokens get what they would have got."""
    design = LevitDesign(attention=AttentionConfig(aux=False))
    model = timm.create_model("castling_levit_128", design=design, **SMALL).eval()
    attention = model.stages[1].downsample.attn_downsample
    tokens = [torch.randn(1, 24, 4, 8) for _ in range(3)]
    attention.num_heads = 4
    attention.local_conv.weight = nn.Parameter(torch.randn(4, 1, 9))
    full = attention.mix(*tokens, grid=(4, 6))
    kept = torch.tensor([0, 2, 4, 12, 14, 16])
    fewer = attention._mix(tokens[0][:, kept], *tokens[1:], grid=(4, 6), q_stride=2, residual=False)
    torch.testing.assert_close(fewer, full[:, kept].flatten(2))


def test_residual_q_is_added():
    design = LevitDesign(residual_q=False)
    with_q, without_q = (timm.create_model("castling_levit_128", design=d, **SMALL).eval() for d in (None, design))
    without_q.load_state_dict(with_q.state_dict())
    for model in (with_q, without_q):
        nn.init.ones_(model.stages[0].blocks[0].attn.proj.ln.bn.weight)
    x = torch.randn(1, 3, 64, 64)
    assert not torch.allclose(with_q(x), without_q(x))


def test_castling_levit_has_no_position_biases_and_foldable_norms():
    model = timm.create_model("castling_levit_192")
    assert not [name for name, _ in model.named_parameters() if "bias" in name and "attention" in name]
    assert all(hasattr(block.attn.qkv, "fuse") for stage in model.stages for block in stage.blocks)


def test_biases_are_resampled_to_other_sizes():
    model = timm.create_model("castling_levit_128", design=PLAIN_LEVIT, img_size=64, **SMALL).eval()
    attention = model.stages[0].blocks[0].attn
    nn.init.normal_(attention.attention_biases)
    assert attention.logit_bias((4, 4), 1, 1).shape == (4, 16, 16)
    bias = attention.logit_bias((4, 6), 2, 1)
    assert bias.shape == (4, 2 * 3, 24)
    assert model(torch.randn(1, 3, 64, 96)).shape == (1, 10)


def test_second_head():
    model = timm.create_model("castling_levit_128", distilled=True, **SMALL)
    x = torch.randn(2, 3, 64, 64)
    assert model(x).shape == (2, 10)
    model.set_distilled_training(True)
    first, second = model(x)
    assert first.shape == second.shape == (2, 10)
    assert model.eval()(x).shape == (2, 10)
    model.reset_classifier(7)
    assert [head.linear.out_features for head in model.get_classifier()] == [7, 7]


def test_a_new_head_goes_where_the_model_is():
    model = timm.create_model("castling_levit_128", **SMALL).double()
    model.reset_classifier(5)
    assert model(torch.randn(2, 3, 64, 64).double()).dtype == torch.float64


def test_gradient_checkpointing_gives_the_same_gradients():
    model = timm.create_model("castling_levit_128", **SMALL)
    x = torch.randn(2, 3, 64, 64)
    gradients = []
    for enable in (False, True):
        model.set_grad_checkpointing(enable)
        model.zero_grad()
        model(x).square().sum().backward()
        gradients.append(model.stem.conv1.linear.weight.grad.clone())
    torch.testing.assert_close(*gradients)


def test_castled_levit_is_linear_attention_only():
    model = castle(timm.create_model("castling_levit_128", **SMALL))
    assert all(block.attn.aux is None for stage in model.stages for block in stage.blocks)
    assert all(stage.downsample.attn_downsample.aux is None for stage in model.stages[1:])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pooling": "tokens"}, "did you mean 'token'"),
        ({"q_pooling": "before"}, "Legal: 'post', 'pre'"),
        ({"q_pooling": "pre"}, "residual_q .* needs q_pooling='post'"),
        ({"attention_bias": True, "attention": AttentionConfig(aux=False)}, "attention_bias needs logits"),
    ],
)
def test_impossible_designs_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        LevitDesign(**arguments)
