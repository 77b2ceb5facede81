"""Boxes stay on what they were drawn around, whatever happens to the picture; all that is random follows the seeds."""

import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.ops import box_iou

from castling.tasks.batches import seeded
from castling.tasks.detection import transforms
from castling.tasks.detection.annotations import Objects
from castling.tasks.detection.data import DetectionData
from castling.tasks.detection.transforms import (
    BoxVariationConfig,
    EvaluationTransform,
    TrainingTransform,
    collate,
    draw_crop,
    prepare,
)

DATA = DetectionData(image_size=64, mean=(0, 0, 0), std=(1, 1, 1), interpolation="nearest")


@pytest.fixture(autouse=True)
def all_seeds():
    with seeded(0):
        yield


def objects_of(*boxes, crowd=()):
    flags = torch.tensor([index in crowd for index in range(len(boxes))], dtype=torch.bool)
    corners = torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4)
    written = torch.cat([corners, torch.full((len(boxes), 1), 7.0)], 1).double()
    return Objects(corners, torch.arange(len(boxes)), flags, written)


def scene(*boxes, size=(160, 120)):
    """A black picture with a white patch in each box."""
    pixels = np.zeros((size[1], size[0], 3), np.uint8)
    for x0, y0, x1, y1 in boxes:
        pixels[y0:y1, x0:x1] = 255
    return Image.fromarray(pixels)


def random_boxes(count, size=(160, 120)):
    corners = torch.rand(count, 2, 2).sort(1).values * torch.tensor(size)
    return corners.flatten(1)


def test_evaluation_resizes_both_sides_apart_and_keeps_crowd():
    boxes = [(40, 30, 80, 60), (0, 0, 160, 120)]
    example = EvaluationTransform(DATA)(scene(boxes[0]), objects_of(*boxes, crowd=[1]))
    assert example["boxes"].tolist() == [[16, 16, 32, 32], [0, 0, 64, 64]]
    assert example["labels"].tolist() == [0, 1]
    assert example["crowd"].tolist() == [False, True]
    assert example["size"].tolist() == [120, 160]  # height and width
    assert example["image"].shape == (3, 64, 64)
    assert example["image"].sum() == 3 * 16 * 16
    assert example["image"][:, 16:32, 16:32].min() == 1
    written = example.pop("written")
    assert written.dtype == np.float64
    assert written[:, 4].tolist() == [7.0] * len(written)
    assert {type(value) for value in example.values()} == {torch.Tensor}


def test_pictures_are_normalised():
    data = DetectionData(image_size=32, mean=(0.5, 0.25, 0), std=(0.5, 0.25, 1))
    picture = Image.new("RGB", (8, 8), (255, 255, 51))
    image = EvaluationTransform(data)(picture, objects_of())["image"]
    assert torch.allclose(image.mean((1, 2)), torch.tensor([1.0, 3.0, 0.2]))
    assert torch.equal(prepare(data)(picture), image)


def test_flipping_moves_boxes_with_the_picture():
    box = (20, 30, 60, 60)
    vary = BoxVariationConfig(crop=0, flip=1, color=0)
    example = TrainingTransform(DATA, vary)(scene(box), objects_of(box))
    assert example["boxes"].tolist() == [[40, 16, 56, 32]]
    assert example["image"][:, 16:32, 40:56].min() == 1


def test_nothing_is_varied_where_nothing_is_asked_for():
    boxes = [(20, 30, 60, 60), (90, 10, 120, 100)]
    quiet = TrainingTransform(DATA, BoxVariationConfig(crop=0, flip=0, color=0))
    found, wanted = (make(scene(*boxes), objects_of(*boxes)) for make in (quiet, EvaluationTransform(DATA)))
    assert set(wanted) - set(found) == {"written"}  # which is for metrics
    assert all(torch.equal(found[name], wanted[name]) for name in found)


def test_crowd_is_never_trained_on():
    boxes = [(20, 30, 60, 60), (90, 10, 120, 100)]
    example = TrainingTransform(DATA, BoxVariationConfig())(scene(*boxes), objects_of(*boxes, crowd=[1]))
    assert example["labels"].tolist() == [0]


def test_boxes_stay_on_their_patches_through_crop_and_flip():
    boxes = [(20, 30, 60, 70), (100, 60, 150, 110)]
    transform = TrainingTransform(DATA, BoxVariationConfig(color=0))
    whole, num_cropped = EvaluationTransform(DATA)(scene(), objects_of(*boxes))["boxes"], 0
    for seed in range(40):
        with seeded(seed):
            example = transform(scene(*boxes), objects_of(*boxes))
        num_cropped += not torch.equal(example["boxes"][:, 1::2], whole[example["labels"], 1::2])
        for x0, y0, x1, y1 in example["boxes"].round().int().tolist():
            patch = example["image"][0, y0 + 1 : y1 - 1, x0 + 1 : x1 - 1]  # but for what rounding may move
            assert patch.numel() == 0 or patch.min() == 1
    assert num_cropped > 20


def test_crops_keep_boxes_whose_centre_is_inside_and_overlap_one_enough(monkeypatch):
    boxes = random_boxes(6)
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    for threshold in transforms.THRESHOLDS:
        monkeypatch.setattr(transforms, "THRESHOLDS", (threshold,))
        drawn = [crop for _ in range(40) if (crop := draw_crop(boxes, 160, 120)) is not None]
        assert drawn or threshold > 0.5
        for crop in drawn:
            frame = torch.tensor(crop[:4])
            assert torch.equal(crop.kept, ((frame[:2] < centres) & (centres < frame[2:])).all(1))
            assert crop.kept.any()
            assert box_iou(frame[None].float(), boxes).max() >= threshold
            width, height = (frame[2:] - frame[:2]).tolist()
            assert crop.left >= 0
            assert crop.top >= 0
            assert crop.right <= 160
            assert crop.bottom <= 120
            assert 0.29**2 <= width * height / (160 * 120) <= 1
            assert 0.45 <= (width / 160) / (height / 120) <= 2.2  # sides are cut to whole pixels


def test_the_whole_picture_is_among_the_choices():
    boxes = random_boxes(3)
    whole = sum(draw_crop(boxes, 160, 120) is None for _ in range(300))
    assert 10 < whole < 200


def test_a_picture_without_boxes_is_not_cropped():
    assert draw_crop(torch.zeros(0, 4), 160, 120) is None
    example = TrainingTransform(DATA, BoxVariationConfig())(scene(), objects_of())
    assert example["boxes"].shape == (0, 4)


def test_what_a_crop_leaves_of_a_box_is_dropped_below_a_pixel(monkeypatch):
    boxes = [(10, 10, 50, 50), (59, 10, 61, 50)]
    crop = transforms.Crop(0, 0, 60, 60, torch.tensor([True, True]))
    monkeypatch.setattr(transforms, "draw_crop", lambda *given: crop)
    vary = TrainingTransform(DATA, BoxVariationConfig(flip=0, color=0))
    assert vary(scene(*boxes), objects_of(*boxes))["labels"].tolist() == [0, 1]
    boxes[1] = (59.5, 10, 60.5, 50)
    assert vary(scene(boxes[0]), objects_of(*boxes))["labels"].tolist() == [0]


@pytest.mark.parametrize("size", [(1, 1), (1, 200), (200, 1), (3, 2)])
def test_pictures_of_any_size_can_be_varied(size):
    objects = objects_of((0, 0, *size))
    for seed in range(20):
        with seeded(seed):
            example = TrainingTransform(DATA, BoxVariationConfig())(Image.new("RGB", size), objects)
        boxes = example["boxes"]
        assert example["image"].shape == (3, 64, 64)
        assert ((boxes >= 0) & (boxes <= 64)).all()
        assert (boxes[:, 2:] > boxes[:, :2]).all()


def test_colours_change_and_boxes_do_not():
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (120, 160, 3), np.uint8))
    objects = objects_of((20, 30, 60, 60))
    plain = EvaluationTransform(DATA)(picture, objects)
    varied = TrainingTransform(DATA, BoxVariationConfig(crop=0, flip=0, color=1))(picture, objects)
    assert torch.equal(plain["boxes"], varied["boxes"])
    assert (plain["image"] - varied["image"]).abs().mean() > 0.01
    assert varied["image"].min() >= 0
    assert varied["image"].max() <= 1


def test_the_seeds_of_the_process_decide_everything():
    boxes = [(20, 30, 60, 60), (90, 10, 120, 100)]
    transform = pickle.loads(pickle.dumps(TrainingTransform(DATA, BoxVariationConfig())))

    def varied(seed):
        with seeded(seed):
            return transform(scene(*boxes), objects_of(*boxes))

    assert all(torch.equal(value, varied(3)[name]) for name, value in varied(3).items())
    assert len({varied(seed)["image"].sum().item() for seed in range(8)}) > 4


def test_a_batch_is_padded_with_label_minus_one():
    transform = EvaluationTransform(DATA)
    boxes = [(0, 0, 80, 60), (80, 60, 160, 120)]
    examples = [transform(scene(), objects_of(*boxes[:count], crowd=[1])) for count in (1, 0, 2)]
    batch = collate([{**example, "index": place} for place, example in enumerate(examples)])
    assert batch["labels"].tolist() == [[0, -1], [-1, -1], [0, 1]]
    assert batch["crowd"].tolist() == [[False, False], [False, False], [False, True]]
    assert batch["boxes"][2].tolist() == [[0, 0, 32, 32], [32, 32, 64, 64]]
    assert batch["boxes"][1].abs().sum() == 0
    assert batch["size"].tolist() == [[120, 160]] * 3
    assert batch["index"].tolist() == [0, 1, 2]
    assert collate(examples[1:2])["boxes"].shape == (1, 0, 4)
    assert batch["image"].is_contiguous(memory_format=torch.channels_last)  # convolutions follow their input


@pytest.mark.parametrize("name", ["crop", "flip", "color"])
@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_probabilities_are_checked(name, value):
    with pytest.raises(ValueError, match=f"{name} is a probability from 0 to 1; got {value}"):
        BoxVariationConfig(**{name: value})
