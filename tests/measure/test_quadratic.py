import torch
import torch.nn.functional as F

from castling.measure import quadratic_tensors


def test_explicit_and_fused_softmax_are_both_found():
    q = torch.randn(1, 2, 100, 8)
    explicit = quadratic_tensors(lambda: (q @ q.mT).softmax(-1) @ q, 100)
    assert any("softmax" in line and "(1, 2, 100, 100)" in line for line in explicit)
    assert any(
        "scaled_dot_product" in line for line in quadratic_tensors(lambda: F.scaled_dot_product_attention(q, q, q), 100)
    )


def test_linear_order_of_products_is_not():
    q = torch.randn(1, 2, 100, 8)
    assert not quadratic_tensors(lambda: q @ (q.mT @ q), 100)
