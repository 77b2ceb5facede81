"""Rows of attention maps at linear cost, against the maps of the slow references."""

import math

import pytest
import torch

from castling import AttentionConfig, CastlingAttention
from castling.attention import KERNELS
from castling.attention.reference import cosine_similarity, softmax_weights
from castling.measure.attention_facts import Tokens, attention_map, record_tokens
from castling.measure.attention_rows import implied_row, on_grid, softmax_row


def block(**config):
    return CastlingAttention(32, 2, config=AttentionConfig(aux=False, **config))


def tokens(num_tokens=13, dtype=torch.float32):
    return Tokens(*torch.randn(3, 2, num_tokens, 2, 16, dtype=dtype).unbind(0))


@pytest.mark.parametrize("place", [0, 7, 12])
def test_a_row_is_that_of_the_linear_angular_reference(place):
    seen = tokens()
    q, k = (x.double().transpose(1, 2) for x in seen[:2])
    wanted = torch.eye(13, dtype=torch.float64) / 2 + cosine_similarity(q, k) / math.pi
    found = implied_row(block(), seen, place)
    assert (found - wanted[:, :, place]).abs().max() < 1e-6
    assert (softmax_row(seen, place) - softmax_weights(q, k)[:, :, place]).abs().max() < 1e-6


@pytest.mark.parametrize(
    "options", [{"value_term": "sum"}, {"reduction": "mean"}, *({"kernel": name} for name in KERNELS)]
)
def test_rows_of_all_kernels_are_those_of_their_maps(options):
    seen, attention = tokens(dtype=torch.float64), block(**options).double()
    whole = attention_map(attention, seen.q, seen.k)
    for place in (0, 12):
        torch.testing.assert_close(implied_row(attention, seen, place), whole[:, :, place])


def test_no_pass_needs_room_for_a_map():
    num_tokens = 200_000  # whose map would have 40 billion entries
    seen = Tokens(*torch.randn(3, 1, num_tokens, 1, 4).unbind(0))
    row = implied_row(CastlingAttention(4, 1), seen, 3)
    assert row.shape == softmax_row(seen, 3).shape == (1, 1, num_tokens)
    assert row[0, 0, 3] == pytest.approx(0.5 + float(torch.cosine_similarity(seen.q[0, 3], seen.k[0, 3])) / math.pi)


def test_rows_are_of_what_a_network_computed():
    attention, x = block(rotary=True, output_norm="none", local_conv="none").double(), torch.randn(1, 13, 32).double()
    attention.num_prefix_tokens = 1
    attention.proj = torch.nn.Identity()
    with record_tokens(attention) as seen:
        out = attention(x, grid=(3, 4))
    found = seen[""]
    row = implied_row(attention, found, 5)
    torch.testing.assert_close(torch.einsum("bhn,bnhd->bhd", row, found.v).flatten(1), out[:, 5])
    prefix, patches = on_grid(row, found.grid, 1)
    assert prefix.shape == (1, 2, 1)
    assert patches.shape == (1, 2, 3, 4)


@pytest.mark.parametrize("place", [-1, 13])
def test_a_place_without_a_token_is_refused(place):
    with pytest.raises(IndexError, match=f"place must lie between 0 and 12; got {place}"):
        implied_row(block(), tokens(), place)
