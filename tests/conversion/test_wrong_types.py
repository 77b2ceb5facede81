import pytest
import torch
from torch import nn

import castling


def converted():
    return castling.convert(nn.TransformerEncoderLayer(32, 4, batch_first=True))


MODEL = "model must be a torch.nn.Module; got 'vit', a str"
CALLS = {
    "preview a name": (lambda: castling.preview("vit"), MODEL),
    "convert a name": (lambda: castling.convert("vit"), MODEL),
    "convert nothing": (lambda: castling.convert(None), "model must be .* got None, a NoneType"),
    "unconvert a name": (lambda: castling.unconvert("vit"), MODEL),
    "castle a name": (lambda: castling.castle("vit"), MODEL),
    "ask a name": (lambda: castling.is_castled("vit"), MODEL),
    "optimize a name": (lambda: castling.optimize("vit"), MODEL),
    "calibrate a name": (lambda: castling.calibrate("vit", []), MODEL),
    "blend of a name": (lambda: castling.set_blend("vit", 1), MODEL),
    "options as a dictionary": (
        lambda: castling.convert(nn.TransformerEncoderLayer(32, 4), {"kernel": "cosine"}),
        "config must be an AttentionConfig; got {'kernel': 'cosine'}, a dict",
    ),
    "only a number": (lambda: castling.preview(nn.TransformerEncoderLayer(32, 4), only=3), "only must be a name"),
    "blend in words": (lambda: castling.set_blend(converted(), "half"), "blend must be a number; got 'half'"),
    "blend in words at once": (
        lambda: castling.convert(nn.TransformerEncoderLayer(32, 4), blend="half"),
        "blend must be a number; got 'half'",
    ),
    "one batch instead of several": (
        lambda: castling.calibrate(converted(), torch.zeros(2, 50, 32)),
        r"several batches.*one tensor \(2, 50, 32\)",
    ),
    "no batches": (lambda: castling.calibrate(converted(), None), "batches must be several batches"),
}


@pytest.mark.parametrize(("call", "message"), CALLS.values(), ids=list(CALLS))
def test_an_argument_of_another_type_gets_a_sentence(call, message):
    with pytest.raises(TypeError, match=message):
        call()


def test_a_blend_of_numpys_is_a_number():
    numpy = pytest.importorskip("numpy")
    model = converted()
    castling.set_blend(model, numpy.float32(0.5))
    assert model.self_attn.blend == 0.5
