"""The numerics contract: nothing finite in, nothing infinite out; outputs and gradients alike."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from castling import AttentionConfig, CastlingAttention, castle
from castling.attention import KERNELS, attend

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
KINDS = ["random", "zero", "constant", "one_hot", "alternating"]
LINEAR = [name for name, kernel in KERNELS.items() if kernel.linear]

properties = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
few = settings(properties, max_examples=12)


def make_tokens(kind, shape, scale):
    if kind == "random":
        x = torch.randn(shape)
    elif kind == "zero":
        x = torch.zeros(shape)
    elif kind == "constant":
        x = torch.ones(shape)
    elif kind == "one_hot":
        x = torch.zeros(shape)
        x[..., 0, 0] = 1
    else:
        x = torch.ones(shape)
        x[..., ::2, :] = -1
    return x * scale


def scales(dtype):
    """Powers of ten that the dtype still holds after a projection has summed them up."""
    low, high = (-7, 4) if dtype == torch.float16 else (-15, 15)
    return st.integers(low, high).map(lambda exponent: 10.0**exponent)


def assert_finite(block, x, dtype):
    x = x.requires_grad_()
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        out = block(x)
    assert out.isfinite().all()
    out.float().mul(torch.randn(out.shape)).mean().backward()
    assert x.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in block.parameters())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("branch", [True, False], ids=["full", "castled"])
@properties
@given(data=st.data(), kind=st.sampled_from(KINDS), num_tokens=st.integers(1, 300), batch=st.integers(1, 2))
def test_block_is_finite(branch, dtype, data, kind, num_tokens, batch):
    block = CastlingAttention(24, 3, qkv_bias=data.draw(st.booleans()))
    block = block if branch else castle(block)
    assert_finite(block, make_tokens(kind, (batch, num_tokens, 24), data.draw(scales(dtype))), dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@few
@given(data=st.data(), kind=st.sampled_from(KINDS), num_tokens=st.sampled_from([4096, 16_384, 65_535, 65_536]))
def test_castled_block_is_finite_for_many_tokens(dtype, data, kind, num_tokens):
    block = castle(CastlingAttention(16, 2))
    assert_finite(block, make_tokens(kind, (1, num_tokens, 16), data.draw(scales(dtype))), dtype)


@pytest.mark.parametrize(
    "options",
    [
        {"value_term": "sum"},
        {"reduction": "mean"},
        {"output_norm": "aux"},
        {"output_norm": "rms", "rotary": True},
        {"output_norm": "none"},
        {"aux_similarity": "dot"},
        {"aux_similarity": "cosine"},
        {"local_conv": "grid", "local_conv_size": 3},
    ],
    ids=str,
)
@few
@given(data=st.data(), kind=st.sampled_from(KINDS), dtype=st.sampled_from([torch.float32, torch.bfloat16]))
def test_every_option_is_finite(options, data, kind, dtype):
    block = CastlingAttention(24, 3, config=AttentionConfig(**options))
    assert_finite(block, make_tokens(kind, (2, 49, 24), data.draw(scales(dtype))), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kernel", [*LINEAR, "angular"])
@few
@given(data=st.data(), kind=st.sampled_from(KINDS), num_tokens=st.integers(1, 200))
def test_kernels_are_finite(kernel, dtype, data, kind, num_tokens):
    exponents = st.integers(-4, 2) if dtype == torch.float16 else st.integers(-9, 9)
    q, k, v = (
        (make_tokens(kind, (2, num_tokens, 2, 8), 10.0 ** data.draw(exponents)).to(dtype)).requires_grad_()
        for _ in range(3)
    )
    out = attend(q, k, v, kernel)
    assert out.isfinite().all()
    (out * torch.randn_like(out)).mean().backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sum_over_tokens_passes_the_range_and_precision_of_half(dtype):
    """65,536 equal tokens: a float16 sum would be infinite, a bfloat16 one would stop growing at 256."""
    q = torch.ones(1, 65_536, 1, 8, dtype=dtype)
    out = attend(q, q, q * 8, "linear_angular")
    # Summed one by one in float32, as some matrix products do, 65,536 equal terms are off by some 1e-4.
    torch.testing.assert_close(out, attend(q.double(), q.double(), 8 * q.double()).float(), rtol=1e-3, atol=0)
    assert out.min() > 65_504


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_block_in_half_precision_throughout(dtype):
    block = CastlingAttention(32, 2).to(dtype)
    x = torch.randn(2, 50, 32, dtype=dtype)
    out = block(x)
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), block.float()(x.float()), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("scale", [1e-5, 1.0, 1e8])
def test_similarity_depends_on_directions_only(scale):
    q, k, v = torch.randn(1, 50, 3, 2, 16).unbind(2)
    torch.testing.assert_close(attend(scale * q, scale * k, v), attend(q, k, v))
