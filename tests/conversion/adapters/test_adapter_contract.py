"""What every adapter promises."""

import copy
import pickle
from dataclasses import replace

import pytest
import torch
from hosts import HOSTS, ONE_OF_EACH_FAMILY, make_host

from castling import AttentionConfig, castle, load_host_weights
from castling.conversion.adapters import ADAPTERS
from castling.conversion.calibration import calibrate, fold_scale
from castling.conversion.converted import converted_attentions, set_blend
from castling.conversion.folding import optimize
from castling.conversion.inspection import preview
from castling.conversion.replace import convert, unconvert
from castling.measure import quadratic_tensors

GRID = AttentionConfig(local_conv="grid", local_conv_size=3)


@pytest.fixture(params=HOSTS)
def host(request):
    return make_host(request.param)


def anatomy(model):
    return [(name, type(module), id(module)) for name, module in model.named_modules()]


def belongings(model):
    """Everything that the modules have, caches, hooks and flags included, with what dictionaries hold."""
    found = {}
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            found[name, attribute] = value
            if isinstance(value, dict):
                found |= {(name, attribute, key): item for key, item in value.items()}
    return found


def failing_at(name, adapter):
    def build(site, config):
        if site.name == name:
            raise RuntimeError("this one cannot be built")
        return adapter.build(site, config)

    return replace(adapter, build=build)


@pytest.fixture
def adapters():
    """The list of adapters, which a test may change."""
    before = list(ADAPTERS)
    yield ADAPTERS
    ADAPTERS[:] = before


def castled(host):
    model = convert(host.model, blend=1)
    with torch.no_grad():
        for attention in converted_attentions(model).values():
            attention.local_conv.weight.normal_(std=0.1)  # it starts at zero
    return castle(model)


def note_sizes(sizes, name):
    def observe(*outputs):
        sizes[name] = [out.square().mean((0, 1, 3)).sqrt() for out in outputs]

    return observe


def test_exact_start(host):
    before = host()
    was = anatomy(host.model)
    previewed = preview(host.model)
    assert anatomy(host.model) == was
    assert previewed.names("replace")
    assert previewed.names("replace") == [layer.name for layer in previewed.layers]
    model = convert(host.model)
    assert model is host.model
    assert list(converted_attentions(model)) == previewed.names("replace")
    torch.testing.assert_close(host(), before, atol=1e-5, rtol=0)
    with torch.no_grad():  # torch's encoder layers have another path without gradients
        torch.testing.assert_close(host(), before, atol=1e-5, rtol=0)


def test_every_family_has_a_host():
    families = {layer.family for name in ONE_OF_EACH_FAMILY for layer in preview(make_host(name).model).layers}
    assert families == {adapter.family for adapter in ADAPTERS}


def test_a_build_that_fails_last_changes_nothing(host, adapters):
    out = host()  # fills the caches that hosts have
    before, weights = belongings(host.model), copy.deepcopy(host.model.state_dict())
    knows_grid = preview(host.model, GRID).names("replace")
    names = preview(host.model).names("replace")
    assert len(names) > 1
    adapters[:] = [failing_at(names[-1], adapter) for adapter in adapters]
    with pytest.raises(RuntimeError, match="this one cannot be built"):
        convert(host.model, GRID if knows_grid else None, blend=0.5)
    after = belongings(host.model)
    assert after.keys() == before.keys()
    assert [place for place, value in before.items() if after[place] is not value] == []
    assert all(torch.equal(value, weights[name]) for name, value in host.model.state_dict().items())
    assert torch.equal(host(), out)


def test_between_softmax_and_castling(host):
    softmax = host()
    convert(host.model, blend=0.5)
    half = host()
    set_blend(host.model, 1)
    full = host()
    assert full.isfinite().all()
    assert not torch.allclose(half, softmax, atol=1e-3)
    assert not torch.allclose(half, full, atol=1e-3)
    assert not torch.allclose(full, softmax, atol=1e-3)


def test_castled_is_linear(host):
    before = host()
    fast = castled(host)
    with torch.no_grad():
        out = host(fast)
        assert quadratic_tensors(lambda: host(fast), host.num_tokens) == []
        set_blend(host.model, 0.5)
        assert quadratic_tensors(host, host.num_tokens)
    assert out.isfinite().all()
    assert not torch.allclose(out, before, atol=1e-3)


def test_parameters_are_the_hosts(host):
    before, weights = dict(host.model.named_parameters()), copy.deepcopy(host.model.state_dict())
    model = convert(host.model)
    after = dict(model.named_parameters())
    assert all(after[name] is parameter for name, parameter in before.items())
    new = {f"{name}.local_conv.weight" for name in converted_attentions(model)}
    assert after.keys() - before.keys() == new
    assert model.state_dict().keys() - weights.keys() == new
    assert all(after[name].count_nonzero() == 0 for name in new)
    out = host()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert set(load_host_weights(model, weights)) == new
    torch.testing.assert_close(host(), out)
    model.load_state_dict(copy.deepcopy(model).state_dict())


def test_there_and_back(host):
    before, was, keys = host(), anatomy(host.model), list(host.model.state_dict())
    model = castle(convert(host.model, blend=1), inplace=True)
    with pytest.raises(ValueError, match="it is castling attention already"):
        convert(model)
    assert unconvert(model) is model
    assert anatomy(model) == was
    assert list(model.state_dict()) == keys
    assert torch.equal(host(), before)
    with pytest.raises(ValueError, match="no converted attention"):
        unconvert(model)


@pytest.mark.parametrize("make", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies(host, make):
    before = host()
    model = convert(host.model, blend=0.5)
    other = make(model)
    assert torch.equal(host(other), host())
    names = [name for name, _ in model.named_parameters()]
    assert [name for name, _ in other.named_parameters()] == names
    assert not set(other.parameters()) & set(model.parameters())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(host(unconvert(other)), before)


def test_gradients_are_the_hosts(host):
    host().square().sum().backward()
    before = {name: parameter.grad for name, parameter in host.model.named_parameters()}
    host.model.zero_grad()
    convert(host.model)
    host().square().sum().backward()
    after = {name: parameter.grad for name, parameter in host.model.named_parameters()}
    for name, gradient in before.items():
        torch.testing.assert_close(after[name], gradient, atol=1e-3, rtol=1e-3)
    set_blend(host.model, 0.5)
    host.model.zero_grad()
    host().square().sum().backward()
    without = {name for name, parameter in host.model.named_parameters() if parameter.grad is None}
    assert without == {name for name, gradient in before.items() if gradient is None}


def test_calibration_matches_the_teacher(host):
    model, before = convert(host.model), host()
    scales = calibrate(model, [host.x])
    assert torch.equal(host(), before)  # the softmax is not scaled
    sizes = {}
    for name, attention in converted_attentions(model).items():
        attention.observer = note_sizes(sizes, name)
    host()
    for name, attention in converted_attentions(model).items():
        teacher, student = sizes[name]
        torch.testing.assert_close(student, teacher, atol=1e-6, rtol=0.01)
        assert scales[name] == attention.head_scale.tolist()
        assert len(scales[name]) == attention.num_heads


def test_folding_the_scale_changes_no_output(host):
    model = convert(host.model, blend=1)
    calibrate(model, [host.x])
    before, folded = host(), fold_scale(model)
    torch.testing.assert_close(host(), before, atol=1e-5, rtol=0)
    left = {name for name in model.state_dict() if name.endswith("head_scale")}
    assert left == {f"{name}.head_scale" for name in converted_attentions(model).keys() - set(folded)}


def test_optimized_for_inference(host):
    fast = castled(host)
    with torch.no_grad():
        torch.testing.assert_close(host(optimize(fast)), host(fast), atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("name", ONE_OF_EACH_FAMILY)
def test_compile(name):
    host = make_host(name)
    fast = castled(host)
    compiled = torch.compile(fast, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(host(compiled), host(fast), atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_OF_EACH_FAMILY)
def test_export(name):
    host = make_host(name)
    fast = castled(host)
    program = torch.export.export(fast, (host.x,), strict=False)
    torch.testing.assert_close(host(program.module()), host(fast), atol=1e-5, rtol=0)
    operators = {str(node.target) for node in program.graph.nodes}
    assert not [name for name in operators if "softmax" in name or "scaled_dot_product" in name]
