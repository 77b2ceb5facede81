import pytest
import torch
from torch import nn

from castling import castle
from castling.conversion.calibration import calibrate
from castling.conversion.converted import BlendSchedule, check_blend_done, first_names, set_blend
from castling.conversion.replace import convert


def test_half_precision(vit, x):
    convert(vit, blend=0.5)
    calibrate(vit, [x])
    with torch.autocast("cpu", torch.bfloat16):
        out = vit(x)
        out.float().sum().backward()
    assert out.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in vit.parameters())


@pytest.mark.parametrize("blend", [-0.1, 1.1, float("nan")])
def test_blends_out_of_range(vit, blend):
    convert(vit, blend=0.5)
    with pytest.raises(ValueError, match="blend must lie in"):
        set_blend(vit, blend)
    assert vit.blocks[0].attn.blend == 0.5
    with pytest.raises(ValueError, match="blend must lie in"):
        BlendSchedule(end=blend)


def test_blend_schedule():
    schedule = BlendSchedule("linear", since=0.2, until=0.6)
    assert [schedule(progress) for progress in (0, 0.2, 0.6, 1)] == [0, 0, 1, 1]
    assert schedule(0.4) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="unknown blend schedule 'linaer': did you mean 'linear'"):
        BlendSchedule("linaer")
    with pytest.raises(ValueError, match="since"):
        BlendSchedule(since=0.5, until=0.4)


def test_many_attentions_with_softmax_left_are_named_in_short():
    layers = nn.Sequential(*(nn.TransformerEncoderLayer(16, 2, 16) for _ in range(5)))
    message = r"4 converted attentions \(1.self_attn, 2.self_attn, 3.self_attn, \.\.\.\) still hold"
    convert(layers, only="[1-4].self_attn")
    convert(layers, only="0.self_attn", blend=1)
    with pytest.raises(ValueError, match=message):
        check_blend_done(layers)
    set_blend(layers, 1)
    check_blend_done(layers)
    assert first_names(["a", "b", "c"]) == "a, b, c"


def test_print_says_the_blend_or_that_it_is_castled():
    layer = convert(nn.TransformerEncoderLayer(16, 2, 16), blend=0.25)
    assert "blend=0.25" in str(layer.self_attn)
    set_blend(layer, 1)
    assert "castled" in str(castle(layer).self_attn)
