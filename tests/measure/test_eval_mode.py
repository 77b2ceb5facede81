import pytest
from torch import nn

from castling.measure.eval_mode import eval_mode


def modes(model):
    return [module.training for module in model.modules()]


def test_every_module_is_back_in_its_own_mode():
    first, second = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2).eval()), nn.Linear(2, 2).eval()
    with eval_mode(first, second):
        assert modes(first) + modes(second) == [False] * 4
    assert modes(first) + modes(second) == [True, True, False, False]


def test_a_failure_leaves_the_mode_as_it_was():
    model = nn.Sequential(nn.Dropout())
    with pytest.raises(RuntimeError, match="stop"), eval_mode(model):
        raise RuntimeError("stop")
    assert modes(model) == [True, True]


def test_one_within_another_changes_nothing_for_the_outer():
    model = nn.Dropout()
    with eval_mode(model):
        with eval_mode(model):
            pass
        assert not model.training
    assert model.training
