import pytest
import torch
import torch.nn.functional as F
from timm.layers import Mlp as TimmMlp

from castling.attention import Mlp


def test_without_convolution_it_is_timms():
    x, ours, theirs = torch.randn(2, 10, 32), Mlp(32, 64), TimmMlp(32, 64)
    theirs.load_state_dict(ours.state_dict())
    assert torch.equal(ours(x), theirs(x))


@pytest.mark.parametrize("prefix", [0, 1, 5])
@pytest.mark.parametrize("grid", [(4, 4), (3, 7), (2, 1)])
def test_convolution_on_the_grid_with_prefix_tokens_around_it(grid, prefix):
    rows, columns = grid
    mlp = Mlp(16, 48, conv_size=5, num_prefix_tokens=prefix)
    x = torch.randn(2, prefix + rows * columns, 16)
    hidden = mlp.fc1(x)
    image = hidden[:, prefix:].reshape(2, rows, columns, 48).permute(0, 3, 1, 2)
    image = F.conv2d(image, mlp.conv.weight, padding=2, groups=48)
    hidden = torch.cat([hidden[:, :prefix], image.flatten(2).transpose(1, 2)], dim=1)
    torch.testing.assert_close(mlp(x, grid), mlp.fc2(F.gelu(hidden)))


def test_a_host_can_leave_the_grid_instead_of_passing_it():
    mlp, x = Mlp(16, conv_size=3), torch.randn(2, 15, 16)
    expected = mlp(x, grid=(3, 5))
    mlp.grid_note.grid = (3, 5)
    assert torch.equal(mlp(x), expected)


def test_only_the_convolution_is_new_in_the_state_dict():
    assert set(Mlp(8, conv_size=3).state_dict()) - set(TimmMlp(8).state_dict()) == {"conv.weight"}


def test_errors():
    with pytest.raises(ValueError, match=r"conv_size must be odd.*got 4"):
        Mlp(8, conv_size=4)
    with pytest.raises(ValueError, match="2 x 3 grid does not hold 7 tokens"):
        Mlp(8, conv_size=3)(torch.randn(1, 7, 8), grid=(2, 3))
