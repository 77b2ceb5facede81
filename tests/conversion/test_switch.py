import copy
import pickle

import pytest
import torch
from torch import nn

import castling
from castling import AttentionConfig, CastlingAttention, castle, castled, is_castled
from castling.conversion import set_blend


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


def converted(aux, blend=0.3):
    """Two torch layers, converted on the way from softmax to castling attention."""
    hosts = nn.Sequential(*(nn.TransformerEncoderLayer(32, 2, 64, batch_first=True) for _ in range(2))).eval()
    model = castling.convert(hosts, AttentionConfig(aux=aux, threshold=0.001), blend=blend)
    with torch.no_grad():
        for layer in model:
            layer.self_attn.local_conv.weight.normal_()
    return model


@pytest.mark.parametrize("aux", [True, False])
def test_castled_is_what_castling_a_converted_model_at_the_end_gives(aux, x):
    model = converted(aux)
    before, keys = model(x), list(model.state_dict())
    finished = copy.deepcopy(model)
    set_blend(finished, 1)
    fast = castle(finished)
    assert not is_castled(model)
    with castled(model):
        assert is_castled(model)
        assert torch.equal(model(x), fast(x))
        assert list(model.state_dict()) == keys
    assert not torch.equal(before, fast(x))
    assert not is_castled(model)
    assert torch.equal(model(x), before)
    assert [layer.self_attn.blend for layer in model] == [0.3, 0.3]


@pytest.mark.parametrize("aux", [True, False])
def test_castled_restores_a_converted_model_after_an_exception(aux, x):
    model = converted(aux)
    before = model(x)
    with pytest.raises(RuntimeError, match="stop"), castled(model):
        raise RuntimeError("stop")
    assert not is_castled(model)
    assert torch.equal(model(x), before)


@pytest.mark.parametrize("aux", [True, False])
def test_a_castled_converted_model_stays_castled(aux, x):
    model = castle(converted(aux, blend=1))
    before, keys = model(x), list(model.state_dict())
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), castle(model)):
        set_blend(other, 0.5)  # of no effect any more
        assert is_castled(other)
        assert torch.equal(other(x), before)
        assert list(other.state_dict()) == keys
        assert torch.equal(castle(other)(x), before)
        with castled(other):
            assert torch.equal(other(x), before)
        assert is_castled(other)
