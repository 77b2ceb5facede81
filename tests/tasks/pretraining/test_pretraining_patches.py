import pytest
import torch

from castling.tasks.pretraining.patches import (
    Masked,
    draw_places,
    fixed_places,
    hidden_places,
    masked_by_share,
    normalise,
    to_images,
    to_patches,
)


def test_patches_are_cut_in_raster_order():
    images = torch.randn(2, 3, 12, 8)
    patches = to_patches(images, (4, 2))
    assert patches.shape == (2, 12, 24)
    for place in range(12):
        row, column = divmod(place, 4)
        cut = images[:, :, 4 * row : 4 * row + 4, 2 * column : 2 * column + 2]
        assert torch.equal(patches[:, place], cut.permute(0, 2, 3, 1).flatten(1))
    assert torch.equal(to_images(patches, (4, 2), (3, 4)), images)
    with pytest.raises(ValueError, match="12 x 8 does not fit patches of 5 x 2"):
        to_patches(images, (5, 2))


def test_normalised_patches_have_mean_0_and_variance_1_and_the_way_back():
    patches = torch.randn(2, 5, 48) * 7 + 3
    found, mean, spread = normalise(patches)
    torch.testing.assert_close(found.mean(-1), torch.zeros(2, 5), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.var(-1), torch.ones(2, 5), atol=1e-4, rtol=0)
    torch.testing.assert_close(found * spread + mean, patches)
    assert not normalise(torch.full((1, 1, 48), 0.1))[0].abs().max() > 1e-3  # one shade stays one


@pytest.mark.parametrize(("share", "seen"), [(0.75, 16), (0.9, 6), (0.99, 1), (0.01, 63)])
def test_the_share_of_hidden_patches(share, seen):
    assert masked_by_share(64, share) == Masked(64, seen)


def test_bad_shares_are_named():
    for share in (0.0, 1.0, -1.0):
        with pytest.raises(ValueError, match=f"masked must lie between 0 and 1; got {share}"):
            masked_by_share(64, share)
    with pytest.raises(ValueError, match="a picture of 1 patches has none to hide"):
        masked_by_share(1, 0.5)


def test_places_are_drawn_by_the_generator_or_fixed_by_numbers():
    masked = Masked(64, 16)
    for draw in (lambda: draw_places(masked), lambda: fixed_places(masked, 3)):
        places = draw()
        assert (len(set(places.tolist())), places.tolist()) == (16, sorted(places.tolist()))
        assert places.dtype == torch.int64
    first, other = draw_places(masked), draw_places(masked)
    assert not torch.equal(first, other)
    torch.manual_seed(5)
    first = draw_places(masked)
    torch.manual_seed(5)
    assert torch.equal(first, draw_places(masked))
    torch.manual_seed(6)
    assert torch.equal(fixed_places(masked, 3), fixed_places(masked, 3))
    assert not torch.equal(fixed_places(masked, 3), fixed_places(masked, 4))


def test_every_place_is_seen_as_often_as_any_other():
    masked = Masked(16, 4)
    hidden = torch.cat([hidden_places(fixed_places(masked, number)[None], 16) for number in range(2000)])
    assert hidden.sum(1).unique().tolist() == [12]
    assert (hidden.float().mean(0) - 0.75).abs().max() < 0.04
