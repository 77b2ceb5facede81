"""Pictures and labels stay together, whatever is done to them; batches are as the network and its judge want them."""

import numpy as np
import pytest
import torch
from mask_pictures import draw_scene
from PIL import Image

from castling.tasks.batches import seeded
from castling.tasks.segmentation.data import SegmentationData
from castling.tasks.segmentation.transforms import (
    EvaluationTransform,
    MaskVariationConfig,
    TrainingTransform,
    collate,
    draw_part,
    input_size,
    largest_share,
    padded_size,
    prepare,
)

PLAIN = MaskVariationConfig(scale=(1.0, 1.0), flip=0.0, color=0.0, cat_max=1.0)
RAW = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}


def labelled(width, height, seed=0):
    """A picture whose red is its label: large blocks of three classes."""
    blocks = np.random.default_rng(seed).integers(0, 3, (-(-height // 8), -(-width // 8)), np.uint8)
    labels = blocks.repeat(8, 0).repeat(8, 1)[:height, :width]
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[..., 0] = labels * 100
    return Image.fromarray(pixels), labels


def varied(transform, picture, labels, seed=0):
    with seeded(seed):
        return transform(picture, labels)


def agreement(example):
    """The share of labelled pixels whose colour says the same; borders are blurred by resizing."""
    there = example["labels"] != 255
    said = (example["image"][0] * 255 / 100).round()
    return float((said == example["labels"])[there].float().mean())


@pytest.mark.parametrize("scale", [(1.0, 1.0), (0.5, 0.5), (1.7, 1.7), (0.5, 2.0)])
@pytest.mark.parametrize("size", [(96, 80), (40, 100), (33, 31)])
@pytest.mark.parametrize("short_side", [None, 48])
def test_labels_stay_with_their_pixels(scale, size, short_side):
    data = SegmentationData(image_size=64, short_side=short_side, **RAW)
    transform = TrainingTransform(data, MaskVariationConfig(scale=scale, flip=0.5, color=0.0))
    for seed in range(4):
        example = varied(transform, *labelled(*size), seed)
        assert example["image"].shape == (3, 64, 64)
        assert example["labels"].shape == (64, 64)
        assert agreement(example) > (0.99 if scale == (1.0, 1.0) and short_side is None else 0.6)


def test_resized_labels_lie_where_resized_pixels_lie():
    data = SegmentationData(image_size=64, interpolation="nearest", **RAW)
    transform = TrainingTransform(data, MaskVariationConfig(scale=(0.6, 1.9), flip=0.5, color=0.0))
    for seed in range(8):  # the nearest pixel of both is the same one
        assert agreement(varied(transform, *labelled(90, 70), seed)) == 1.0


def test_without_variation_a_crop_is_cut_from_the_picture():
    picture, labels = draw_scene(np.random.default_rng(0), 80, 70)
    labels = np.asarray(labels)
    pixels = np.asarray(picture)
    example = varied(TrainingTransform(SegmentationData(image_size=64, **RAW), PLAIN), picture, labels)
    image = (example["image"] * 255).round().byte().permute(1, 2, 0).numpy()
    found = [
        (top, left)
        for top in range(7)
        for left in range(17)
        if (pixels[top : top + 64, left : left + 64] == image).all()
    ]
    assert len(found) == 1
    top, left = found[0]
    assert (labels[top : top + 64, left : left + 64] == example["labels"].numpy()).all()


def test_small_pictures_are_filled_up_with_the_mean_and_ignored():
    picture, labels = labelled(40, 24)
    data = SegmentationData(image_size=64)
    example = varied(TrainingTransform(data, PLAIN), picture, labels)
    assert (example["image"][:, 24:] == 0).all()
    assert (example["image"][:, :, 40:] == 0).all()
    assert (example["labels"][24:] == 255).all()
    assert (example["labels"][:, 40:] == 255).all()
    assert (example["labels"][:24, :40].numpy() == labels).all()


def test_flips_happen_as_often_as_asked():
    picture, labels = labelled(64, 64)
    data = SegmentationData(image_size=64, **RAW)
    plain = varied(TrainingTransform(data, PLAIN), picture, labels)
    mirror = MaskVariationConfig(scale=(1.0, 1.0), flip=1.0, color=0.0)
    flipped = varied(TrainingTransform(data, mirror), picture, labels)
    assert torch.equal(flipped["image"], plain["image"].flip(-1))
    assert torch.equal(flipped["labels"], plain["labels"].flip(-1))


def test_colours_change_pictures_and_no_labels():
    picture, labels = draw_scene(np.random.default_rng(1), 64, 64)
    labels, data = np.asarray(labels), SegmentationData(image_size=64, **RAW)
    vary = MaskVariationConfig(scale=(1.0, 1.0), flip=0.0, color=1.0)
    plain = varied(TrainingTransform(data, PLAIN), picture, labels)
    coloured = varied(TrainingTransform(data, vary), picture, labels)
    assert not torch.allclose(plain["image"], coloured["image"], atol=0.02)
    assert torch.equal(plain["labels"], coloured["labels"])


def test_crops_of_one_class_are_drawn_again():
    labels = np.zeros((64, 640), np.uint8)
    labels[:, 300:340] = 1  # most crops have only the first class
    picture = Image.new("RGB", (640, 64))
    data = SegmentationData(image_size=64)

    def mixed(cat_max):
        vary = MaskVariationConfig(scale=(1.0, 1.0), cat_max=cat_max)
        found = [varied(TrainingTransform(data, vary), picture, labels, seed)["labels"] for seed in range(60)]
        return sum(largest_share(one.numpy()) <= 0.75 for one in found)

    assert mixed(0.75) > 3 * mixed(1.0) > 0


def test_scale_goes_from_the_smallest_to_the_largest():
    picture, labels = labelled(64, 64)
    data = SegmentationData(image_size=128)
    vary = MaskVariationConfig(scale=(0.5, 2.0), color=0.0)
    sides = [
        int((varied(TrainingTransform(data, vary), picture, labels, seed)["labels"][0] != 255).sum())
        for seed in range(40)
    ]
    assert 32 <= min(sides) < 45
    assert 110 < max(sides) <= 128


def test_the_same_seed_gives_the_same_example():
    picture, labels = labelled(100, 90)
    transform = TrainingTransform(SegmentationData(image_size=64), MaskVariationConfig())
    first, again, other = (varied(transform, picture, labels, seed) for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["image"], other["image"])


def test_parts_lie_within_the_picture_and_reach_all_of_it():
    with seeded(0):
        parts = [draw_part((100, 50), (150, 75), 60) for _ in range(300)]
    boxes = np.array([part.box for part in parts])
    assert boxes[:, :2].min() == 0
    assert boxes[:, 2].max() == 100
    assert boxes[:, 3].max() == 50
    assert {part.size for part in parts} == {(60, 60)}
    assert np.allclose(boxes[:, 2] - boxes[:, 0], 40)


def test_evaluation_pictures_are_resized_and_padded_and_labels_are_not():
    data = SegmentationData(short_side=40, max_side=50)
    transform = EvaluationTransform(data)
    scenes = [labelled(80, 96), labelled(50, 200)]
    batch = collate([{**transform(*scene), "index": place} for place, scene in enumerate(scenes)])
    assert batch["image"].shape == (2, 3, 64, 64)
    assert batch["image"].is_contiguous(memory_format=torch.channels_last)
    assert batch["seen"].tolist() == [[48, 40], [50, 12]]
    assert batch["size"].tolist() == [[96, 80], [200, 50]]
    assert (batch["labels"].shape, batch["labels"].dtype) == ((2, 200, 80), torch.int64)
    assert batch["index"].tolist() == [0, 1]
    for place, (picture, labels) in enumerate(scenes):
        rows, columns = batch["seen"][place].tolist()
        assert (batch["image"][place, :, rows:] == 0).all()
        assert (batch["image"][place, :, :, columns:] == 0).all()
        assert batch["image"][place, :, :rows, :columns].abs().min() > 0
        height, width = labels.shape
        assert (batch["labels"][place, :height, :width].numpy() == labels).all()
        assert int((batch["labels"][place] != 255).sum()) == picture.width * picture.height


def test_evaluation_pictures_are_as_they_are_by_default():
    picture, labels = labelled(64, 32)
    image = EvaluationTransform(SegmentationData(**RAW))(picture, labels)["image"]
    assert ((image * 255).round().byte().permute(1, 2, 0).numpy() == np.asarray(picture)).all()


def test_training_batches_are_as_the_losses_want_them():
    transform = TrainingTransform(SegmentationData(image_size=32), MaskVariationConfig())
    examples = [{**varied(transform, *labelled(40, 50), seed), "index": seed} for seed in range(3)]
    batch = collate(examples)
    assert sorted(batch) == ["image", "index", "labels"]
    assert (batch["image"].shape, batch["labels"].shape) == ((3, 3, 32, 32), (3, 32, 32))
    assert batch["labels"].dtype == torch.int64


def test_pictures_to_predict_are_prepared_as_in_evaluation():
    data = SegmentationData(short_side=40)
    picture, labels = labelled(80, 96)
    batch = collate([EvaluationTransform(data)(picture, labels)])
    assert torch.equal(prepare(data)(picture), batch["image"][0])


@pytest.mark.parametrize(("size", "wanted"), [((10, 2000), (1, 100)), ((1, 1), (1, 1)), ((300, 150), (100, 50))])
def test_sizes_have_at_least_a_pixel_and_at_most_the_longest_side(size, wanted):
    assert input_size(size, SegmentationData(max_side=100)) == wanted
    assert padded_size((1, 32)) == (32, 32)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"scale": (2.0, 0.5)}, "two factors above 0 in order"),
        ({"scale": (0.0, 1.0)}, "two factors above 0 in order"),
        ({"flip": 1.5}, "flip must lie from 0 to 1; got 1.5"),
        ({"cat_max": -1.0}, "cat_max must lie from 0 to 1"),
    ],
)
def test_variation_that_cannot_be_is_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        MaskVariationConfig(**settings)
