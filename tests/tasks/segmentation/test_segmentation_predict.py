"""Predictions say shares, draw what was seen where it was seen, and keep the classes of all pixels in a mask."""

import json

import numpy as np
import pytest
import torch
from mask_pictures import CLASSES, COLORS, draw_scene
from PIL import Image
from torch import nn

from castling.tasks.prediction import PicturePredictor, Seen
from castling.tasks.segmentation.data import SegmentationData
from castling.tasks.segmentation.drawing import (
    as_palette,
    draw_labels,
    make_palette,
    palette_image,
    with_legend,
)
from castling.tasks.segmentation.predict import MaskOptions, MaskPrediction, interpret_masks, run_lengths
from castling.tasks.segmentation.transforms import prepare

PLACES = np.array([[0, 0, 1, 1], [0, 0, 0, 2]], np.uint8)
RAW = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}


def predicted(**options):
    return MaskPrediction("photo.jpg", PLACES, CLASSES, COLORS, MaskOptions(**options))


class Eyes(nn.Module):
    """Sees the colours of test pictures: a network that needs no training."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, images):
        images = nn.functional.avg_pool2d(images, 4) * self.scale
        wanted = torch.tensor(COLORS) / 255
        return -(images[:, None] - wanted[None, :, :, None, None]).square().sum(2)  # (B, K, H / 4, W / 4)


def make_predictor(short_side=None, **options):
    data = SegmentationData(short_side=short_side, **RAW)
    interpret = interpret_masks(data, CLASSES, None, MaskOptions(**options))
    return PicturePredictor(Eyes(), prepare(data), interpret, data.channels)


def test_lines_and_json_have_shares_the_largest_first():
    found = predicted()
    assert found.line() == "photo.jpg: ground 62 %, square 25 %, disc 12 %"
    said = json.loads(json.dumps(found.to_json()))
    assert said == {
        "name": "photo.jpg",
        "size": [4, 2],
        "shares": {"ground": 0.625, "square": 0.25, "disc": 0.125},
        "error": None,
    }


def test_run_lengths_give_the_mask_again():
    said = json.loads(json.dumps(predicted(runs=True).to_json()))
    assert said["labels"] == list(CLASSES)
    again = np.concatenate([np.full(length, place) for place, length in said["runs"]]).reshape(2, 4)
    assert again.tolist() == PLACES.tolist()
    rng = np.random.default_rng(0)
    places = rng.integers(0, 3, (20, 30), np.uint8)
    again = np.repeat(*np.array(run_lengths(places)).T)
    assert again.tolist() == places.ravel().tolist()


def test_classes_of_next_to_nothing_are_left_out_of_lines():
    places = np.zeros((100, 100), np.uint8)
    places[0, :40] = 1
    places[1, :60] = 2
    found = MaskPrediction("x", places, CLASSES, COLORS)
    assert found.line() == "x: ground 99 %, disc 1 %"
    assert set(found.shares) == set(CLASSES)


def test_a_mask_is_an_image_with_a_palette_whose_pixels_are_classes(tmp_path):
    drawn = predicted(form="mask").draw(Image.new("RGB", (4, 2)))
    drawn.save(tmp_path / "mask.png")
    with Image.open(tmp_path / "mask.png") as saved:
        assert saved.mode == "P"
        assert np.asarray(saved).tolist() == PLACES.tolist()
        assert np.asarray(saved.convert("RGB")).tolist() == np.array(COLORS)[PLACES].tolist()


def test_an_overlay_has_the_colours_of_classes_over_the_picture():
    picture = Image.new("L", (4, 2), 100)
    drawn = np.asarray(predicted(legend=False, opacity=0.5).draw(picture))
    assert drawn.tolist() == (0.5 * 100 + 0.5 * np.array(COLORS)[PLACES]).round().astype(int).tolist()
    assert np.asarray(picture).min() == 100  # a copy
    solid = np.asarray(predicted(legend=False, opacity=1.0).draw(picture))
    assert solid.tolist() == np.array(COLORS)[PLACES].tolist()


def test_a_legend_has_the_names_and_colours_of_what_was_seen():
    picture = Image.new("RGB", (64, 48), "white")
    places = np.zeros((48, 64), np.uint8)
    places[:, 32:] = 1
    found = MaskPrediction("x", places, CLASSES, COLORS)
    drawn = np.asarray(found.draw(picture))
    assert drawn.shape[0] > 48
    legend = {tuple(pixel) for pixel in drawn[48:].reshape(-1, 3).tolist()}
    assert COLORS[0] in legend
    assert COLORS[1] in legend
    assert COLORS[2] not in legend
    assert (drawn[48:] == 0).all(2).any()  # something is written there


def test_both_are_beside_each_other():
    drawn = predicted(form="both", legend=False).draw(Image.new("RGB", (4, 2)))
    assert drawn.size == (12, 2)
    assert np.asarray(drawn)[:, 8:].tolist() == np.array(COLORS)[PLACES].tolist()


def test_long_legends_take_several_lines_and_long_names_have_room():
    picture = Image.new("RGB", (120, 100))
    one = with_legend(picture, ["sky"], [(1, 2, 3)])
    many = with_legend(picture, [f"class {number}" for number in range(12)], [(1, 2, 3)] * 12)
    assert many.height > one.height > 100
    assert with_legend(picture, ["a name that is far longer than the picture"], [(1, 2, 3)]).width > 120
    assert with_legend(picture, [], []) is picture


@pytest.mark.parametrize("short_side", [None, 48])
def test_pictures_of_several_sizes_are_predicted_together(short_side):
    scenes = [
        draw_scene(np.random.default_rng(seed), *size) for seed, size in enumerate(((64, 64), (70, 50), (90, 40)))
    ]
    found = make_predictor(short_side)([picture for picture, _ in scenes])
    assert [one.name for one in found] == ["0", "1", "2"]
    for prediction, (picture, mask) in zip(found, scenes, strict=True):
        truth = np.asarray(mask)
        assert prediction.places.shape == truth.shape
        assert prediction.draw(picture).width >= picture.width
        assert (prediction.places == truth)[truth != 255].mean() > 0.9


def test_a_picture_is_seen_alike_alone_and_in_company():
    scenes = [draw_scene(np.random.default_rng(seed), *size)[0] for seed, size in enumerate(((70, 50), (64, 96)))]
    predictor = make_predictor()
    together = predictor(scenes)
    for picture, other in zip(scenes, together, strict=True):
        assert (predictor(picture)[0].places == other.places).all()


def test_outputs_are_interpreted_at_the_size_of_each_picture():
    interpret = interpret_masks(SegmentationData(short_side=32), ["a", "b"], [[1, 1, 1], [2, 2, 2]], MaskOptions())
    scores = torch.tensor([0.5, 0.0])[None, :, None, None].repeat(1, 1, 8, 16)
    scores[:, 1, :, 12:] = 1  # 60 of its 64 columns are picture: the last twelve of these
    [found] = interpret(scores, [Seen("x", (120, 64))])
    assert found.places.shape == (64, 120)
    assert found.places[:, :94].max() == 0
    assert found.places[:, 98:].min() == 1
    assert found.palette == ((1, 1, 1), (2, 2, 2))


def test_made_colours_can_be_told_apart():
    for count, least in ((20, 40), (150, 15)):
        colors = np.array(make_palette(count), float)
        assert colors.shape == (count, 3)
        distances = np.abs(colors[:, None] - colors[None]).max(2) + 1000 * np.eye(count)
        assert distances.min() >= least


def test_colours_of_the_data_are_kept_and_counted():
    assert as_palette([[1, 2, 3]], 1) == ((1, 2, 3),)
    assert as_palette(None, 3) == make_palette(3)
    with pytest.raises(ValueError, match="3 classes need as many colours; got 1"):
        as_palette([[1, 2, 3]], 3)


def test_pixels_without_a_label_keep_the_picture():
    labels = np.array([[255, 1]], np.uint8)
    drawn = np.asarray(draw_labels(Image.new("RGB", (2, 1), (7, 8, 9)), labels, COLORS, 1.0))
    assert drawn.tolist() == [[[7, 8, 9], list(COLORS[1])]]
    assert np.asarray(palette_image(labels, COLORS)).tolist() == [[255, 1]]


@pytest.mark.parametrize(
    ("settings", "said"), [({"form": "masks"}, "did you mean 'mask'"), ({"opacity": 2.0}, "from 0 to 1; got 2.0")]
)
def test_options_that_cannot_be_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        MaskOptions(**settings)
