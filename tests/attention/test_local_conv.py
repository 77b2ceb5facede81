import pytest
import torch
import torch.nn.functional as F

from castling.attention import GridConv, TokenConv
from castling.attention.grid import depthwise_on_grid, resolve_grid


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("num_tokens", [1, 7, 50])
def test_token_conv_is_one_filter_per_head_along_the_sequence(num_tokens, batch):
    v = torch.randn(batch, num_tokens, 3, 4, 8).unbind(2)[2]  # strided, as from the projection
    conv = TokenConv(num_heads=4)
    assert conv.weight.shape == (4, 1, 9)
    # A (9, 1) filter on (B, H, N, D): one per head, the same for all its channels.
    expected = F.conv2d(v.transpose(1, 2), conv.weight.unsqueeze(-1), padding=(4, 0), groups=4).transpose(1, 2)
    torch.testing.assert_close(conv(v), expected)


@pytest.mark.parametrize("prefix", [0, 1, 5])
@pytest.mark.parametrize("grid", [(4, 4), (3, 7), (1, 9)])
def test_grid_conv_follows_the_image_and_leaves_prefix_tokens_alone(grid, prefix):
    rows, columns = grid
    v = torch.randn(2, prefix + rows * columns, 3, 2, 8).unbind(2)[2]
    conv = GridConv(2, kernel_size=3, num_prefix_tokens=prefix)
    out = conv(v, grid)
    assert (out[:, :prefix] == 0).all()
    image = v[:, prefix:].reshape(2, rows, columns, 16).permute(0, 3, 1, 2)
    expected = F.conv2d(image, conv.weight.repeat_interleave(8, 0), padding=1, groups=16)
    torch.testing.assert_close(out[:, prefix:].flatten(2), expected.flatten(2).transpose(1, 2))


def test_tokens_stay_in_their_memory_order():
    tokens = torch.randn(2, 12, 32)
    assert depthwise_on_grid(tokens, torch.randn(32, 1, 3, 3), (3, 4)).is_contiguous()


def test_square_grid_is_found_and_others_must_be_named():
    assert resolve_grid(16, None) == (4, 4)
    with pytest.raises(ValueError, match=r"6 x 6 grid does not hold 40 tokens .*pass grid="):
        resolve_grid(41, None, num_prefix_tokens=1)
    with pytest.raises(ValueError, match="3 x 5 grid does not hold 16 tokens"):
        resolve_grid(16, (3, 5))
    with pytest.raises(ValueError, match="does not hold 0 tokens"):
        resolve_grid(1, None, num_prefix_tokens=1)


@pytest.mark.parametrize("make", [TokenConv, GridConv])
@pytest.mark.parametrize("size", [4, 0, -3])
def test_kernel_without_a_centre_is_refused(make, size):
    with pytest.raises(ValueError, match=f"odd.*got {size}"):
        make(2, size)
