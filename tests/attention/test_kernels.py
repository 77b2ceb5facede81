"""Fast kernels against the quadratic truths, outputs and gradients; layouts, dtypes, errors."""

from typing import get_args

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from castling.attention import KERNELS, CastlingAttention, attend, linear_angular_attention, reference
from castling.config import AttentionConfig, KernelName


def tokens(batch, num_tokens, num_heads, dim, dtype):
    """Views q, k, v of one qkv tensor, as the projection lays them out."""
    qkv = torch.randn(*batch, num_tokens, 3, num_heads, dim, dtype=dtype, requires_grad=True)
    return qkv, qkv.unbind(-3)


def assert_equal_with_gradients(fast, slow, batch, num_tokens, dim, dtype, tolerance):
    qkv, (q, k, v) = tokens(batch, num_tokens, 3, dim, dtype)
    out, expected = fast(q, k, v), slow(q, k, v)
    assert out.shape == v.shape
    assert out.dtype == dtype
    probe = torch.randn_like(expected)
    (gradient,) = torch.autograd.grad((out.double() * probe).sum(), qkv)
    (expected_gradient,) = torch.autograd.grad((expected * probe).sum(), qkv)
    for actual, truth in ((out, expected), (gradient, expected_gradient)):
        error = (actual.double() - truth.double()).abs().max()
        assert error <= tolerance * max(1, truth.abs().max())


def test_table_holds_the_configurable_names():
    assert set(KERNELS) == set(get_args(KernelName)) == set(reference.ATTENTIONS)


@pytest.mark.parametrize("batch", [(1,), (3,)], ids=str)
@pytest.mark.parametrize("dim", [8, 24, 64])
@pytest.mark.parametrize("num_tokens", [1, 2, 7, 63, 197])
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernel_equals_its_quadratic_reference(kernel, num_tokens, dim, batch):
    def fast(q, k, v):
        return attend(q, k, v, kernel)

    slow = reference.ATTENTIONS[kernel]
    assert_equal_with_gradients(fast, slow, batch, num_tokens, dim, torch.float64, 1e-10)
    assert_equal_with_gradients(fast, slow, batch, num_tokens, dim, torch.float32, 1e-5)


@pytest.mark.parametrize("batch", [(), (2, 2), (1, 1), (0,)], ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
def test_any_batch_shape(kernel, batch):
    _, (q, k, v) = tokens(batch, 7, 3, 8, torch.float64)
    torch.testing.assert_close(attend(q, k, v, kernel), reference.ATTENTIONS[kernel](q, k, v))


@pytest.mark.parametrize("batch", [(1,), (2,)], ids=str)
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("value_term", ["own", "sum"])
def test_linear_angular_options_equal_reference(value_term, reduction, batch):
    def fast(q, k, v):
        return linear_angular_attention(q, k, v, value_term=value_term, reduction=reduction)

    def slow(q, k, v):
        return reference.linear_angular_attention(q, k, v, value_term, reduction)

    assert_equal_with_gradients(fast, slow, batch, 63, 24, torch.float64, 1e-10)
    assert_equal_with_gradients(fast, slow, batch, 63, 24, torch.float32, 1e-5)


def test_exact_value_term_and_expansion_make_the_angular_kernel():
    """Linear part plus the residuals of Eq. 8 is the exact kernel's attention."""
    _, (q, k, v) = tokens((1,), 31, 2, 8, torch.float64)

    def residuals(x, y):
        return reference.angular_kernel_expansion(x, y, 300) - reference.angular_kernel_expansion(x, y, 0)

    linear = linear_angular_attention(q, k, v, value_term="sum")
    total = linear + reference.attention(residuals, q, k, v)
    torch.testing.assert_close(total, attend(q, k, v, "angular"), atol=1e-6, rtol=0)


def test_mean_reduction_does_not_depend_on_the_number_of_tokens():
    _, (q, k, v) = tokens((1,), 50, 2, 16, torch.float64)
    twice = [torch.cat([x, x], dim=-3) for x in (q, k, v)]
    out = linear_angular_attention(q, k, v, reduction="mean")
    torch.testing.assert_close(linear_angular_attention(*twice, reduction="mean")[:, :50], out)


@pytest.mark.parametrize("kernel", [name for name, kernel in KERNELS.items() if name != "linear_angular"])
def test_fewer_queries_and_other_value_width(kernel):
    q, k, v = torch.randn(2, 9, 3, 8), torch.randn(2, 25, 3, 8), torch.randn(2, 25, 3, 12)
    expected = reference.ATTENTIONS[kernel](q, k, v)
    torch.testing.assert_close(attend(q, k, v, kernel).double(), expected, atol=1e-4, rtol=1e-4)


class CopyWatch(TorchDispatchMode):
    """Copies of tensors with at least so many entries."""

    def __init__(self, num_entries):
        super().__init__()
        self.num_entries = num_entries
        self.copies = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        copying = func.overloadpacket.__name__ in {"clone", "copy_", "_to_copy", "contiguous", "cat"}
        if copying and result.numel() >= self.num_entries:
            self.copies.append((func, result.shape))
        return result


@pytest.mark.parametrize("batch", [1, 4])
def test_linear_angular_copies_no_tokens(batch):
    q, k, v = torch.randn(batch, 64, 3, 3, 16).unbind(2)
    with CopyWatch(q.numel()) as watch:
        out = linear_angular_attention(q, k, v)
    assert not watch.copies
    assert out.shape == q.shape


@pytest.mark.parametrize("batch", [1, 4])
def test_castled_block_copies_no_tokens(batch):
    block, x = CastlingAttention(48, 3, config=AttentionConfig(aux=False)).eval(), torch.randn(batch, 64, 48)
    with torch.no_grad(), CopyWatch(x.numel()) as watch:
        block(x)
    assert not watch.copies


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kernel", [name for name, kernel in KERNELS.items() if name != "softmax"])
def test_half_precision_is_computed_in_float32(kernel, dtype):
    _, (q, k, v) = tokens((2,), 63, 3, 16, dtype)
    out = attend(q, k, v, kernel)
    assert out.dtype == torch.float32
    expected = reference.ATTENTIONS[kernel](q, k, v)
    torch.testing.assert_close(out.double(), expected, atol=1e-3, rtol=1e-4)
    with torch.autocast("cpu", dtype):
        torch.testing.assert_close(attend(q, k, v, kernel), out)


def test_unknown_kernel_names_the_nearest():
    q = torch.randn(1, 4, 2, 8)
    with pytest.raises(ValueError, match="unknown kernel 'linear_angle': did you mean 'linear_angular'"):
        attend(q, q, q, "linear_angle")


def test_unknown_option_is_refused():
    q = torch.randn(1, 4, 2, 8)
    with pytest.raises(ValueError, match="unknown value_term 'all'"):
        linear_angular_attention(q, q, q, value_term="all")
    with pytest.raises(ValueError, match="unknown reduction 'max'"):
        linear_angular_attention(q, q, q, reduction="max")


@pytest.mark.parametrize("kernel", KERNELS)
def test_shapes_that_do_not_fit_are_named(kernel):
    q, k = torch.randn(1, 4, 2, 8), torch.randn(1, 4, 3, 8)
    with pytest.raises(ValueError, match=r"k \(1, 4, 3, 8\)"):
        attend(q, k, k, kernel)
    with pytest.raises(ValueError, match="expected q"):
        attend(q[0, 0], q[0, 0], q[0, 0], kernel)


def test_own_value_needs_one_query_per_value():
    q, k = torch.randn(1, 4, 2, 8), torch.randn(1, 9, 2, 8)
    with pytest.raises(ValueError, match="4 queries and 9 values"):
        linear_angular_attention(q, k, k)
    places = torch.tensor([0, 2, 6, 8])
    fewer = linear_angular_attention(k[:, places], k, k, own_value=k[:, places])
    torch.testing.assert_close(fewer, linear_angular_attention(k, k, k)[:, places])
    assert linear_angular_attention(q, k, k, value_term="sum").shape == q.shape
