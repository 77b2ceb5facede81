import torch
import torch.nn.functional as F
from torch import nn

from castling import CastlingAttention
from castling.measure import quadratic_tensors
from castling.measure.quadratic import longest_sequence


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


class _WithQueries(nn.Module):
    """Castling attention among 16 tokens, and a decoder with 50 queries behind it."""

    def __init__(self):
        super().__init__()
        self.attention, self.decoder = CastlingAttention(8, 2), nn.Linear(8, 8)

    def forward(self, images):
        tokens = self.attention(images.flatten(2).mT)
        return self.decoder(tokens.mean(1, keepdim=True).expand(-1, 50, -1))


def test_tokens_are_those_of_castling_attention_whatever_a_decoder_sees():
    images = torch.randn(2, 8, 4, 4)
    assert longest_sequence(_WithQueries(), images) == 16
    assert longest_sequence(_WithQueries().decoder, torch.randn(2, 50, 8)) == 50  # a network without such attention
