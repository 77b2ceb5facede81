import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import create_transform

from castling.tasks.batches import seeded
from castling.tasks.pictures import MODES
from castling.tasks.preparation import (
    ManySizesConfig,
    PictureConfig,
    VariationConfig,
    eval_transform,
    in_two_steps,
    train_transform,
)

OFF = {"crop_scale": None, "flip": 0, "color_jitter": 0, "auto_augment": None, "erasing": 0}
GREY = PictureConfig(image_size=8, channels=1, mean=(0.0,), std=(1.0,), crop_share=1.0)
COLOUR = PictureConfig(image_size=8, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), crop_share=1.0)


def noise(seed=0, size=(8, 8), channels=3):
    pixels = np.random.default_rng(seed).integers(0, 256, (*size[::-1], channels), np.uint8)
    return Image.fromarray(pixels.squeeze(-1) if channels == 1 else pixels)


def test_evaluation_resizes_and_crops_the_centre():
    data = PictureConfig(image_size=8, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7), crop_share=0.5)
    picture = noise(size=(40, 30))
    expected = np.asarray(picture.resize((21, 16), Image.Resampling.BICUBIC).crop((6, 4, 14, 12))) / 255  # (H, W, 3)
    expected = torch.tensor((expected - data.mean) / data.std, dtype=torch.float32).permute(2, 0, 1)
    assert torch.allclose(eval_transform(data)(picture), expected, atol=1e-6)


def test_interpolation_is_used():
    picture = noise()
    data = PictureConfig(image_size=16, mean=(0.0,) * 3, std=(1.0,) * 3, crop_share=1.0, interpolation="nearest")
    expected = torch.tensor(np.asarray(picture)).permute(2, 0, 1).repeat_interleave(2, 1).repeat_interleave(2, 2) / 255
    for transform in (eval_transform(data), train_transform(data, VariationConfig(**OFF))):
        assert torch.allclose(transform(picture), expected)


def test_training_without_variation_is_evaluation():
    train = train_transform(COLOUR, VariationConfig(**OFF))
    assert torch.equal(train(noise(2)), eval_transform(COLOUR)(noise(2)))


@pytest.mark.parametrize(
    "options",
    [
        {"crop_scale": (0.2, 0.3)},
        {"flip": 1.0},
        {"color_jitter": 0.9},
        {"auto_augment": "rand-m9-mstd0.5"},
        {"erasing": 1.0},
    ],
    ids=lambda options: next(iter(options)),
)
def test_each_variation_changes_pictures(options):
    vary, plain = train_transform(COLOUR, VariationConfig(**{**OFF, **options})), eval_transform(COLOUR)
    with seeded(0):
        assert any(not torch.equal(vary(noise(seed)), plain(noise(seed))) for seed in range(5))


def test_flip_mirrors():
    vary = train_transform(COLOUR, VariationConfig(**{**OFF, "flip": 1.0}))
    assert torch.equal(vary(noise()), eval_transform(COLOUR)(noise()).flip(-1))


def test_grey_pictures_are_varied_too():
    vary = train_transform(GREY, VariationConfig(erasing=1.0))
    for epoch in range(50):  # until every operation of the policy had its turn
        with seeded(epoch):
            assert vary(noise(channels=1)).shape == (1, 8, 8)


def test_empty_example_and_plain_values_for_use_elsewhere():
    assert GREY.example().shape == (1, 1, 8, 8)
    wanted = {"mean": (0.0,), "std": (1.0,), "interpolation": "bicubic", "crop_share": 1.0}
    assert GREY.preprocessing() == wanted


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"interpolation": "bicubik"}, "unknown interpolation 'bicubik': did you mean 'bicubic'"),
        ({"channels": 2}, r"channels must be one of \[1, 3\]; got 2"),
        ({"channels": 1}, "mean and std need 1 numbers each"),
        ({"std": (1.0,)}, "mean and std need 3 numbers each"),
        ({"image_size": 0}, "image_size must be at least 1; got 0"),
        ({"crop_share": 0.0}, r"crop_share must lie in \(0, 1\]; got 0"),
        ({"crop_share": 1.1}, r"crop_share must lie in \(0, 1\]; got 1.1"),
    ],
)
def test_picture_settings_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        PictureConfig(**options)


def test_sizes_of_training_are_checked():
    with pytest.raises(ValueError, match=r"sizes must be at least 1; got \(32, 0\)"):
        ManySizesConfig(sizes=(32, 0))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"flip": 2.0}, "flip is a probability from 0 to 1; got 2.0"),
        ({"erasing": -0.1}, "erasing is a probability from 0 to 1; got -0.1"),
        ({"color_jitter": -1.0}, "color_jitter must be at least 0; got -1.0"),
        ({"crop_scale": (1.0, 0.5)}, r"crop_scale must rise within \(0, 1\]"),
        ({"crop_scale": (0.0, 0.5)}, r"crop_scale must rise within \(0, 1\]"),
        ({"crop_scale": (0.5, 2.0)}, r"crop_scale must rise within \(0, 1\]"),
        ({"crop_ratio": (2.0, 1.0)}, "crop_ratio must rise from above 0"),
        ({"auto_augment": "foo"}, "auto_augment must be a policy of timm's, .*; got 'foo'"),
        ({"auto_augment": "rand-q9"}, "auto_augment must be a policy of timm's, .*; got 'rand-q9'"),
    ],
)
def test_variation_outside_its_range_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        VariationConfig(**options)


@pytest.mark.parametrize("std", [0.0, -1.0])
def test_std_is_above_zero(std):
    with pytest.raises(ValueError, match="std must be above 0"):
        PictureConfig(channels=1, mean=(0.5,), std=(std,))


@pytest.mark.parametrize("policy", ["rand-m10-inc1", "v0"])
def test_policies_at_their_strongest_take_every_picture(policy):
    # They ask for shades of no bits now and then, which Pillow 13 refuses.
    transform = train_transform(PictureConfig(image_size=8), VariationConfig(auto_augment=policy))
    picture = Image.new("RGB", (8, 8), (200, 100, 50))
    for number in range(300):
        with seeded(number):
            assert transform(picture).isfinite().all()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("varied", [False, True])
def test_pictures_are_timms_to_the_last_bit(channels, varied):
    data = PictureConfig(
        channels=channels, image_size=9, mean=(0.3, 0.4, 0.5)[:channels], std=(0.1, 0.2, 0.3)[:channels]
    )
    size = (channels, 9, 9)
    shared = {"mean": data.mean, "std": data.std, "interpolation": data.interpolation}
    if varied:
        policy = "rand-m9-mstd0.5-inc1"
        ours = train_transform(data, VariationConfig(erasing=0.5))
        theirs = create_transform(size, is_training=True, auto_augment=policy, re_prob=0.5, re_mode="pixel", **shared)
    else:
        ours, theirs = eval_transform(data), create_transform(size, crop_pct=data.crop_share, **shared)
    for number in range(20):
        picture, images = noise(number, (14, 11), channels), []
        for transform in (ours, theirs):
            with seeded(number):
                images.append(transform(picture))
        assert torch.equal(*images)


@pytest.mark.parametrize("erasing", [0.0, 1.0])
@pytest.mark.parametrize("data", [COLOUR, GREY], ids=["colour", "grey"])
def test_bytes_that_are_normalised_as_a_batch_are_the_same_numbers(data, erasing):
    whole = train_transform(data, VariationConfig(**{**OFF, "erasing": erasing}))
    first, normalise = in_two_steps(whole)
    pictures = [noise(number).convert(MODES[data.channels]) for number in range(3)]
    wanted, parts = [], []
    for number, picture in enumerate(pictures):
        for transform, found in ((whole, wanted), (first, parts)):
            with seeded(number):
                found.append(transform(picture))
    assert parts[0].dtype == (torch.float32 if erasing else torch.uint8)  # what is erased is not looked at again
    assert torch.equal(normalise(torch.stack(parts)), torch.stack(wanted))
