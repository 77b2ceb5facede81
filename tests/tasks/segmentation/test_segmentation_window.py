"""A window over a picture gives what the whole gives where nothing else is asked, and averages what it sees twice."""

import pytest
import torch
from torch import nn

from castling.tasks.segmentation.window import Windowed, starts, windowed


class Conv(nn.Module):
    """A network that sees beyond the border of a window."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 9, stride=4, padding=4)
        self.sizes = []

    def forward(self, images):
        self.sizes.append(tuple(images.shape[-2:]))
        return self.conv(images) + images.mean((1, 2, 3), keepdim=True)


@torch.no_grad()
@pytest.mark.parametrize("window", [96, 128, 512])
def test_a_window_as_large_as_the_picture_is_the_network(window):
    network, images = Conv(), torch.randn(2, 3, 96, 96)
    assert torch.equal(windowed(network, images, window, 32), network(images))


@torch.no_grad()
@pytest.mark.parametrize(("window", "stride"), [(64, 64), (64, 32), (96, 64), (32, 32)])
def test_windows_are_averaged(window, stride):
    network, images = Conv(), torch.randn(2, 3, 128, 160)
    total, times = torch.zeros(2, 5, 32, 40), torch.zeros(32, 40)
    for top in range(0, 128, 32):
        for left in range(0, 160, 32):
            at_row = top in range(0, 128 - window, stride) or top == 128 - window
            at_column = left in range(0, 160 - window, stride) or left == 160 - window
            if at_row and at_column:
                part = (slice(top // 4, (top + window) // 4), slice(left // 4, (left + window) // 4))
                total[..., part[0], part[1]] += network(images[..., top : top + window, left : left + window])
                times[part] += 1
    assert times.min() >= 1
    found = windowed(network, images, window, stride)
    assert torch.allclose(found, total / times, atol=1e-5)
    assert torch.equal(Windowed(network, window, stride)(images), found)


@torch.no_grad()
def test_a_side_that_is_smaller_than_the_window_is_seen_whole():
    network = Conv()
    assert windowed(network, torch.randn(1, 3, 32, 160), 64, 64).shape == (1, 5, 8, 40)
    assert network.sizes == [(32, 64)] * 3


def test_the_last_window_ends_with_the_picture():
    assert starts(160, 64, 64) == [0, 64, 96]
    assert starts(128, 64, 64) == [0, 64]
    assert starts(64, 64, 64) == [0]


@pytest.mark.parametrize(
    ("window", "stride", "said"),
    [
        (50, 32, "window must be a multiple of 32; got 50"),
        (64, 0, "stride must be a multiple of 32; got 0"),
        (64, 96, "stride must be at most the window, 64"),
    ],
)
def test_windows_that_do_not_fit_are_refused(window, stride, said):
    with pytest.raises(ValueError, match=said):
        windowed(Conv(), torch.zeros(1, 3, 64, 64), window, stride)
    with pytest.raises(ValueError, match=said):
        Windowed(Conv(), window, stride)
