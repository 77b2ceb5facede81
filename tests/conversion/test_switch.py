import copy

import pytest
import torch
from torch import nn

import castling
from castling import AttentionConfig, CastlingAttention, castle, castled, is_castled


@pytest.fixture
def model():
    return nn.Sequential(CastlingAttention(32, 2), nn.ReLU(), CastlingAttention(32, 4))


@pytest.fixture
def x():
    return torch.randn(2, 30, 32)


def test_castle_drops_the_branch_of_a_copy(model, x):
    before = model(x)
    fast = castle(model)
    assert is_castled(fast)
    assert not is_castled(model)
    assert torch.equal(model(x), before)
    assert not torch.equal(fast(x), before)
    assert fast[0].qkv.weight is not model[0].qkv.weight


def test_castle_in_place(model):
    parameters = list(model.parameters())
    assert castle(model, inplace=True) is model
    assert is_castled(model)
    assert all(new is old for new, old in zip(model.parameters(), parameters, strict=True))


def test_castling_changes_no_key_and_no_weight(model):
    fast = castle(model)
    assert list(fast.state_dict()) == list(model.state_dict())
    assert all(torch.equal(fast.state_dict()[key], value) for key, value in model.state_dict().items())
    model.load_state_dict(fast.state_dict())


def test_castling_twice_is_castling_once(model, x):
    once = castle(model)
    assert torch.equal(castle(once)(x), once(x))


def test_castled_switches_off_and_on_again(model, x):
    before, branches = model(x), [model[0].aux, model[2].aux]
    with castled(model) as same:
        assert same is model
        assert is_castled(model)
        assert torch.equal(model(x), castle(model)(x))
    assert [model[0].aux, model[2].aux] == branches
    assert torch.equal(model(x), before)


def test_castled_restores_after_an_exception(model):
    with pytest.raises(RuntimeError, match="stop"), castled(model):
        raise RuntimeError("stop")
    assert model[0].aux is not None
    assert model[2].aux is not None


def test_castled_leaves_a_partly_castled_model_as_it_was(model):
    model[0].aux = None
    with castled(model):
        assert is_castled(model)
    assert model[0].aux is None
    assert model[2].aux is not None


def test_eval_does_not_castle(model, x):
    assert not is_castled(model.eval())
    assert torch.equal(model(x), copy.deepcopy(model).train()(x))


def test_is_castled_needs_an_attention():
    assert not is_castled(nn.Linear(2, 2))
    assert is_castled(CastlingAttention(32, 2, config=AttentionConfig(aux=False)))


@pytest.mark.parametrize("inplace", [False, True])
def test_nothing_to_castle_is_an_error(inplace):
    with pytest.raises(ValueError, match="no castling attention in this Linear"):
        castle(nn.Linear(2, 2), inplace=inplace)
    with pytest.raises(ValueError, match="no castling attention"), castled(nn.Linear(2, 2)):
        pass


def test_public_door():
    assert {"castle", "castled", "is_castled", "CastlingAttention", "linear_angular_attention"} <= set(castling.__all__)
