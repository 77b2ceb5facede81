"""Rotary positions against complex numbers token by token, and what they promise of the attention around them."""

import copy

import pytest
import torch

from castling import AttentionConfig, CastlingAttention, castle, optimize
from castling.attention import KERNELS, attend
from castling.attention.grid import GridNote
from castling.attention.heads import unit
from castling.attention.reference import turned
from castling.attention.rotary import rotary_table, rotate
from castling.measure.shapes import shapes_only

ROTARY = AttentionConfig(rotary=True)


def block(num_prefix_tokens=0, config=ROTARY, dim=32, num_heads=2):
    return CastlingAttention(dim, num_heads, config=config, num_prefix_tokens=num_prefix_tokens).double()


@pytest.mark.parametrize("recorded", [False, True], ids=["in place", "recorded"])
@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize("grid", [(5, 7), (1, 1), (3, 3)], ids=str)
def test_turning_is_that_of_the_reference(grid, prefix, recorded):
    num_tokens = prefix + grid[0] * grid[1]
    qkv = torch.randn(2, num_tokens, 3, 4, 8, dtype=torch.float64, requires_grad=recorded)
    x = qkv.unbind(2)[1]  # strided, as the projection has it
    found = rotate(x, rotary_table(grid, 8, prefix, x))
    torch.testing.assert_close(found, turned(x.detach(), grid, prefix), atol=1e-14, rtol=0)
    assert torch.equal(found[:, :prefix], x[:, :prefix])
    torch.testing.assert_close(found.norm(dim=-1), x.norm(dim=-1))


def test_products_depend_on_where_one_token_lies_from_the_other():
    grid = (6, 4)
    q, k = torch.randn(2, 1, 1, 1, 16, dtype=torch.float64).expand(-1, -1, 24, -1, -1)
    table = rotary_table(grid, 16, 0, q)
    scores = torch.einsum("bnhd,bmhd->nm", rotate(q, table), rotate(k, table)).unflatten(0, grid).unflatten(-1, grid)
    down, right = 2, 1
    moved = scores[down:, right:, down:, right:]
    torch.testing.assert_close(moved, scores[: 6 - down, : 4 - right, : 6 - down, : 4 - right])
    assert scores.std() > 0.1


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_block_attends_with_turned_queries_and_keys(kernel):
    config = AttentionConfig(kernel=kernel, aux=False, rotary=True, output_norm="none", local_conv="none")
    attention = block(1, config)
    x = torch.randn(2, 13, 32, dtype=torch.float64)
    q, k, v = attention.qkv(x).unflatten(-1, (3, 2, 16)).unbind(2)
    wanted = attend(turned(q, (3, 4), 1), turned(k, (3, 4), 1), v, kernel)
    torch.testing.assert_close(attention(x, grid=(3, 4)), attention.proj(wanted.flatten(2)))
    assert not torch.allclose(attention(x, grid=(4, 3)), attention(x, grid=(3, 4)))


def test_the_branch_sees_them_too_and_castling_is_exact():
    attention = block(1)
    x = torch.randn(2, 13, 32, dtype=torch.float64)
    q, k, v = attention.qkv(x).unflatten(-1, (3, 2, 16)).unbind(2)
    q, k = turned(q, (3, 4), 1), turned(k, (3, 4), 1)
    summed = attend(q, k, v) + attention.aux(q, k, v)
    wanted = unit(summed, 1e-7) + attention.local_conv(v)
    torch.testing.assert_close(attention(x, grid=(3, 4)), attention.proj(wanted.flatten(2)))
    attention.aux.set_threshold(1.0)
    castled = castle(attention)
    assert torch.equal(castled(x, grid=(3, 4)), attention(x, grid=(3, 4)))
    with torch.no_grad():
        torch.testing.assert_close(optimize(castled)(x, grid=(3, 4)), castled(x, grid=(3, 4)))


def test_parameters_are_those_of_the_block_without():
    plain, rotary = block(config=AttentionConfig()), block()
    rotary.load_state_dict(plain.state_dict())
    assert list(plain.state_dict()) == list(rotary.state_dict())


def test_visible_tokens_keep_their_places():
    grid, visible = (3, 4), torch.tensor([[7, 2, 10], [0, 5, 11]])
    config = AttentionConfig(aux=False, rotary=True, local_conv="none")
    attention = block(1, config)
    attention.grid_note = GridNote()
    attention.grid_note.grid, attention.grid_note.visible = grid, visible
    x = torch.randn(2, 4, 32, dtype=torch.float64)
    found = attention(x)
    q, k, v = attention.qkv(x).unflatten(-1, (3, 2, 16)).unbind(2)
    for image, places in enumerate(visible.tolist()):
        everywhere = [torch.zeros(1, 13, 2, 16, dtype=torch.float64) for _ in range(2)]
        rows = [0, *(place + 1 for place in places)]
        for whole, tokens in zip(everywhere, (q, k), strict=True):
            whole[0, rows] = tokens[image]
        turned_q, turned_k = (turned(whole, grid, 1)[:, rows] for whole in everywhere)
        wanted = unit(attend(turned_q, turned_k, v[image : image + 1]), 1e-7)
        torch.testing.assert_close(found[image : image + 1], attention.proj(wanted.flatten(2)))


def test_fewer_queries_are_turned_at_their_own_places():
    q, k, v = torch.randn(3, 2, 24, 2, 16, dtype=torch.float64)
    attention, grid = block(), (4, 6)

    def every_second(tokens):
        return tokens.unflatten(1, grid)[:, ::2, ::2].flatten(1, 2)

    full = attention.mix(*attention.placed(q, k, grid), v, grid)
    fewer = attention.placed(every_second(q), k, grid, every_second)
    found = attention.mix(*fewer, v, grid, subsample=every_second)
    torch.testing.assert_close(found, every_second(full))


def test_half_precision_is_turned_in_float32():
    x = torch.randn(1, 36, 2, 16)
    attention = block().float()
    exact, _ = attention.placed(x, x, (6, 6))
    half, _ = attention.placed(x.bfloat16(), x.bfloat16(), (6, 6))
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), exact, atol=0.02, rtol=0.02)


def test_kept_tables_serve_training_and_other_devices():
    attention, x = block(dim=48).float(), torch.randn(1, 20, 48)
    with torch.inference_mode():
        attention(x, grid=(4, 5))
    attention(x, grid=(4, 5)).sum().backward()
    with shapes_only():
        counted = block(dim=48).float()
    assert counted(torch.empty(1, 20, 48, device="meta"), grid=(4, 5)).is_meta
    torch.testing.assert_close(copy.deepcopy(attention)(x, grid=(4, 5)), attention(x, grid=(4, 5)))


def test_what_has_no_place_is_refused():
    with pytest.raises(ValueError, match="channels 4 divides; got 6"):
        rotary_table((2, 2), 6, 0, torch.empty(0))
    with pytest.raises(ValueError, match="pass grid="):
        block()(torch.randn(1, 12, 32, dtype=torch.float64))
    q, v = torch.randn(1, 24, 2, 16), torch.randn(1, 24, 2, 16)
    with pytest.raises(ValueError, match="a key for every value; got 6 and 24"):
        block().placed(q, q[:, :6], (4, 6), num_values=v.shape[1])
