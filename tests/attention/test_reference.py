"""The equations hold for the slow truths themselves."""

import math

import pytest
import torch

from castling.attention import reference


@pytest.fixture
def vectors():
    return torch.randn(40, 6, dtype=torch.float64)


def test_angle_of_known_vectors():
    x = torch.tensor([[1.0, 0.0]])
    y = torch.tensor([[2.0, 0.0], [0.0, 3.0], [-1.0, 0.0], [1.0, 1.0]])
    expected = torch.tensor([[0, math.pi / 2, math.pi, math.pi / 4]], dtype=torch.float64)
    torch.testing.assert_close(reference.spectral_angle(x, y), expected)


def test_similarities_lie_between_zero_and_one(vectors):
    similarity = reference.angular_kernel(vectors, 1e3 * torch.randn_like(vectors))
    assert similarity.min() >= 0
    assert similarity.max() <= 1
    assert reference.angular_kernel(vectors, -vectors).diagonal().abs().max() < 1e-7


def test_eq_6_mapped_vectors_have_length_one(vectors):
    similarity = reference.angular_kernel(vectors, vectors)
    torch.testing.assert_close(similarity.diagonal(), torch.ones(40, dtype=torch.float64), atol=1e-7, rtol=0)


def test_eq_7_squared_distance_is_twice_the_angle_over_pi(vectors):
    similarity = reference.angular_kernel(vectors, vectors)
    # An explicit feature map: the kernel is positive semi-definite, so its matrix has a square root.
    values, directions = torch.linalg.eigh(similarity)
    assert values.min() > -1e-10
    features = directions * values.clamp_min(0).sqrt()
    distances = torch.cdist(features, features, compute_mode="donot_use_mm_for_euclid_dist") ** 2
    expected = 2 / math.pi * reference.spectral_angle(vectors, vectors)
    torch.testing.assert_close(distances, expected, atol=1e-6, rtol=0)


def test_eq_8_converges_to_the_exact_kernel(vectors):
    other = torch.randn_like(vectors)
    exact = reference.angular_kernel(vectors, other)
    errors = [
        (reference.angular_kernel_expansion(vectors, other, order) - exact).abs().max() for order in (0, 1, 3, 10, 400)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-8


def test_eq_8_linear_part_is_its_zeroth_order(vectors):
    linear = 0.5 + reference.cosine_similarity(vectors, vectors) / math.pi
    torch.testing.assert_close(reference.angular_kernel_expansion(vectors, vectors, 0), linear)


def test_eq_8_coefficients():
    for k in range(8):
        printed = math.factorial(2 * k) / (2 ** (2 * k) * math.factorial(k) ** 2 * (2 * k + 1))
        assert reference.expansion_coefficient(k) == pytest.approx(printed / math.pi)
