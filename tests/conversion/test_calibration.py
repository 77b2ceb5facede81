import copy

import pytest
import torch

from castling.conversion.calibration import calibrate, fold_scale
from castling.conversion.converted import converted_attentions
from castling.conversion.replace import convert


def test_calibrated_weights_load_into_a_model_that_is_not(vit, x):
    other = convert(copy.deepcopy(vit), blend=1)
    convert(vit, blend=1)
    calibrate(vit, [x])
    assert not torch.equal(other(x), vit(x))
    other.load_state_dict(vit.state_dict())
    assert torch.equal(other(x), vit(x))


def test_calibrating_twice_changes_nothing(vit, x):
    convert(vit.train(), blend=0.3)
    first = calibrate(vit, [x])
    assert vit.training
    assert {attention.blend for attention in converted_attentions(vit).values()} == {0.3}
    second = calibrate(vit, [{"image": x}, (x, None)])
    for name, scales in first.items():
        assert second[name] == pytest.approx(scales, rel=1e-4)
        assert min(scales) > 0


def test_calibration_needs_batches_and_leaves_no_trace_of_a_failure(vit, x):
    convert(vit)
    with pytest.raises(ValueError, match="no batch"):
        calibrate(vit, [])
    with pytest.raises(AttributeError):
        calibrate(vit, [x, ["no tensor"]])
    assert all(a.observer is None and a.head_scale is None for a in converted_attentions(vit).values())


def test_folding_waits_for_the_blend(vit, x):
    convert(vit, blend=0.5)
    calibrate(vit, [x])
    before = vit(x)
    with pytest.raises(ValueError, match="still hold the host's softmax"):
        fold_scale(vit)
    assert torch.equal(vit(x), before)
