"""Native passes against torch's operators, and all the ways in which they step aside."""

import logging
import subprocess

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from castling.attention import CastlingAttention, Mlp, forms, mlp, native
from castling.attention.grid import depthwise_on_grid
from castling.config import AttentionConfig

pytestmark = pytest.mark.skipif(native.library() is None, reason="there is no compiler, or it is switched off")

CLOSE = {"atol": 1e-5, "rtol": 0}


@pytest.fixture
def torch_alone(monkeypatch):
    """A function that calls another with torch's operators alone."""

    def call(function, *arguments, **keywords):
        with monkeypatch.context() as patch:
            patch.setattr(native, "library", lambda: None)
            return function(*arguments, **keywords)

    return call


@pytest.fixture
def counted(monkeypatch):
    """How often native code ran."""
    calls = []
    for name in ("depthwise", "attention"):
        form = getattr(native, name)
        monkeypatch.setattr(
            native, name, lambda *given, form=form, name=name, **named: calls.append(name) or form(*given, **named)
        )
    return calls


def layer(channels=24, hidden=None, size=5, num_prefix_tokens=1, act_layer=nn.GELU):
    made = Mlp(channels, hidden, act_layer=act_layer, conv_size=size, num_prefix_tokens=num_prefix_tokens)
    return made.eval().requires_grad_(False)


def attention(dim=96, heads=3, num_prefix_tokens=1, **config):
    made = CastlingAttention(
        dim, heads, config=AttentionConfig(aux=False, **config), num_prefix_tokens=num_prefix_tokens
    )
    made.eval().requires_grad_(False).fold()
    return made


@pytest.mark.parametrize("grid", [(1, 1), (1, 7), (7, 1), (2, 2), (5, 9), (14, 14)])
@pytest.mark.parametrize(("size", "num_prefix_tokens", "batch"), [(5, 1, 1), (3, 0, 3), (5, 2, 2)])
def test_mlp_is_that_of_torch(grid, size, num_prefix_tokens, batch, torch_alone, counted):
    made = layer(hidden=37, size=size, num_prefix_tokens=num_prefix_tokens)  # a number that no vector divides
    x = 3 * torch.randn(batch, num_prefix_tokens + grid[0] * grid[1], 24)
    found = made(x, grid)
    assert counted == ["depthwise"]
    torch.testing.assert_close(found, torch_alone(made, x, grid), **CLOSE)


@pytest.mark.parametrize("grid", [(9, 4), (10, 7), (23, 3), (2, 40)])
@pytest.mark.parametrize(("size", "num_prefix_tokens"), [(5, 1), (3, 0)])
def test_bands_of_rows_are_the_whole(grid, size, num_prefix_tokens, monkeypatch, torch_alone, counted):
    monkeypatch.setattr(mlp, "BAND", 16)
    made = layer(size=size, num_prefix_tokens=num_prefix_tokens)
    x = torch.randn(2, num_prefix_tokens + grid[0] * grid[1], 24)
    found = made(x, grid)
    assert len(counted) >= 2
    torch.testing.assert_close(found, torch_alone(made, x, grid), **CLOSE)


@pytest.mark.parametrize("act_layer", [nn.SiLU, lambda: nn.GELU(approximate="tanh")])
def test_another_activation_is_that_of_torch(act_layer, torch_alone, counted):
    made, x = layer(act_layer=act_layer), torch.randn(1, 1 + 12, 24)
    found = made(x, (3, 4))
    assert counted == ["depthwise"]
    torch.testing.assert_close(found, torch_alone(made, x, (3, 4)), **CLOSE)


def test_gelu_far_from_zero_and_of_what_is_no_number():
    x = torch.tensor([-1e4, -50.0, -6.0, -5.5, -1e-3, 0.0, 1e-20, 5.6, 40.0, 1e30, float("inf"), float("nan")])
    weight = torch.zeros(len(x), 1, 3, 3)
    weight[:, :, 1, 1] = 1
    found = native.depthwise(x.reshape(1, 1, -1), weight, (1, 1), gelu=True).flatten()
    expected = nn.functional.gelu(x)
    torch.testing.assert_close(found[:-2], expected[:-2], atol=1e-6, rtol=1e-6)
    assert found[-2:].isnan().tolist() == [False, True] or found[-2:].isnan().all()


OPTIONS = [
    {},
    {"output_norm": "rms"},
    {"output_norm": "none"},
    {"value_term": "sum"},
    {"value_term": "sum", "reduction": "mean"},
    {"local_conv": "none"},
    {"local_conv": "grid", "local_conv_size": 3},
    {"local_conv_size": 3},
    {"rotary": True},
    {"kernel": "mean_centred"},
    {"kernel": "mean_centred", "output_norm": "none", "rotary": True},
]


@pytest.mark.parametrize("config", OPTIONS, ids=str)
@pytest.mark.parametrize(
    ("dim", "heads", "grid", "batch"), [(96, 3, (5, 7), 2), (192, 3, (9, 9), 1), (96, 6, (1, 3), 1)]
)
def test_attention_is_that_of_torch(config, dim, heads, grid, batch, torch_alone, counted):
    made = attention(dim, heads, **config)
    x = 3 * torch.randn(batch, 1 + grid[0] * grid[1], dim)
    found = made(x, grid=grid)
    assert "attention" in counted
    torch.testing.assert_close(found, torch_alone(made, x, grid=grid), atol=3e-5, rtol=0)


def test_attention_needs_no_thread_of_its_own(torch_alone):
    made, x = attention(), torch.randn(1, 1 + 49, 96)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            torch.testing.assert_close(made(x), torch_alone(made, x), **CLOSE)
    finally:
        torch.set_num_threads(before)


def test_tokens_without_a_direction_stay_without_one(torch_alone):
    made, x = attention(), torch.randn(1, 1 + 9, 96)
    x[:, 3:5] = 0
    found = made(x)
    assert found.isfinite().all()
    torch.testing.assert_close(found, torch_alone(made, x), **CLOSE)


def test_heads_that_no_vector_divides_are_left_to_torch(counted):
    assert attention(dim=3 * 18, heads=3)(torch.randn(1, 10, 54)).shape == (1, 10, 54)
    assert counted == []


def test_who_records_counts_or_traces_sees_torchs_operators(counted, monkeypatch):
    made, x = layer(hidden=32), torch.randn(1, 1 + 9, 24)
    made(x.requires_grad_()).sum().backward()
    assert x.grad is not None
    x = x.detach()
    with FlopCounterMode(display=False) as counter:
        made(x)
    taps = 9 * 25 * 32
    assert counter.get_total_flops() == 2 * (10 * 24 * 32 * 2 + taps)
    torch.jit.trace(made, x, check_trace=False)
    torch.vmap(made)(x[None])
    with torch.autocast("cpu", torch.bfloat16):
        made(x)
        monkeypatch.setattr(mlp, "BAND", 4)
        made(x)
    made.double()(x.double())
    assert counted == []


def test_a_first_layer_of_another_type_is_left_to_torch(counted):
    made = layer()
    made.fc2.bfloat16()
    made.fc1 = nn.Sequential(made.fc1, Half())
    made.conv.bfloat16()
    assert made(torch.randn(1, 1 + 9, 24)).isfinite().all()
    assert counted == []


class Half(nn.Module):
    def forward(self, x):
        return x.bfloat16()


def test_tokens_that_do_not_fit_are_refused():
    weight = torch.randn(8, 1, 3, 3)
    for tokens in (torch.randn(1, 5, 8), torch.randn(1, 6, 7), torch.randn(1, 6, 8).half()):
        with pytest.raises(ValueError, match=r"do not fit \(2, 3\) and 0 more"):
            native.depthwise(tokens, weight, (2, 3))
    for other in (torch.randn(8, 1, 7, 7), torch.randn(8, 1, 3, 5), weight.double()):
        with pytest.raises(ValueError, match=r"do not fit \(2, 3\)"):
            native.depthwise(torch.randn(1, 6, 8), other, (2, 3))


def test_what_is_plain_may_run_outside_of_torch():
    plain = torch.randn(2)
    assert forms.native_passes(plain, nn.Parameter(plain, requires_grad=False))
    assert not forms.native_passes(plain, nn.Parameter(plain))
    with torch.no_grad():
        assert forms.native_passes(plain, nn.Parameter(plain))
    assert not forms.native_passes(plain.half())
    assert not forms.native_passes(plain.to("meta"))


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """No library yet, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    native.library.cache_clear()
    yield tmp_path / "castling"
    native.library.cache_clear()


def test_it_is_compiled_once(fresh, monkeypatch):
    assert native.library() is not None
    (made,) = fresh.iterdir()
    native.library.cache_clear()
    run = subprocess.run

    def version_only(command, **keywords):
        assert command[1:] == ["--version"]
        return run(command, **keywords)

    monkeypatch.setattr(subprocess, "run", version_only)
    assert native.library() is not None
    assert list(fresh.iterdir()) == [made]


def homeless(patch):
    def home():
        raise RuntimeError("no home")

    patch.delenv("XDG_CACHE_HOME")
    patch.setattr(native.Path, "home", home)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda patch: patch.setattr(native.shutil, "which", lambda name: None), "there is no C++ compiler"),
        (lambda patch: patch.setattr(native, "FLAGS", ("--no-such-flag",)), "returned non-zero exit status"),
        (lambda patch: patch.setattr(native, "TOLERANCE", 0.0), "outputs differ from those of torch's operators"),
        (lambda patch: patch.setenv("XDG_CACHE_HOME", "/dev/null"), "Not a directory"),
        (homeless, "no home"),
    ],
    ids=["no compiler", "it fails", "wrong outputs", "no place", "no home"],
)
def test_without_it_torchs_operators_run(fresh, monkeypatch, caplog, change, reason):
    made, x = layer(), torch.randn(1, 1 + 9, 24)
    change(monkeypatch)
    with caplog.at_level(logging.INFO):
        assert native.library() is None
        assert made(x).isfinite().all()
    assert reason in caplog.text
    with pytest.raises(RuntimeError, match="ask can_convolve or can_attend first"):
        native.depthwise(x, made.conv.weight, (3, 3))


def test_it_can_be_switched_off(fresh, monkeypatch):
    monkeypatch.setenv("CASTLING_NATIVE", "0")
    assert native.library() is None
    assert not fresh.exists()


@pytest.mark.parametrize("wrong", ["own_value", "local", "taps"])
def test_terms_that_do_not_fit_are_refused(wrong):
    q = k = v = torch.randn(1, 6, 2, 32)
    terms = native.Terms(1.0, 1.0, centred=True, scale=1.0, normalised=False, eps=1e-7, eps_out=1e-7)
    given = {"own_value": None, wrong: torch.randn(1, 6, 2, 16)}
    with pytest.raises(ValueError, match="expected"):
        native.attention(q, k, v, terms=terms, **given)


def test_depthwise_writes_the_rows_that_are_wanted():
    tokens, weight = torch.randn(1, 6 * 5, 8), torch.randn(8, 1, 3, 3)
    whole = depthwise_on_grid(tokens, weight, (6, 5))
    found = native.depthwise(tokens, weight, (6, 5), rows=(2, 5))
    torch.testing.assert_close(found, whole[:, 10:25], **CLOSE)
