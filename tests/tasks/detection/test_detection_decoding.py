"""What is left of boxes equals a slow class-wise NMS, outside of a graph and in it."""

import pytest
import slow_detection as slow
import torch
from torch import nn

from castling.exporting import export
from castling.exporting.capture import capture
from castling.exporting.onnx import onnx_runner, to_onnx
from castling.tasks.detection.decoding import DetectorWithSelection, SelectConfig, select


class Given(nn.Module):
    """A detector that says what it was given."""

    def __init__(self, scores, boxes):
        super().__init__()
        self.scores, self.boxes = scores, boxes

    def forward(self, images):
        return {"scores": self.scores, "boxes": self.boxes}


def crowded(num_points, num_classes, seed, ties=False):
    """Many boxes on few places, some beyond the picture; in quarters of pixels, so that no sum is rounded."""
    torch.manual_seed(seed)
    places = torch.randint(-200, 200, (12, 2))[torch.randint(12, (num_points,))].float()
    corners = places + torch.randint(-40, 40, (num_points, 2)) / 4
    boxes = torch.cat([corners, corners + torch.randint(0, 400, (num_points, 2)) / 4], dim=1)
    scores = torch.rand(num_points, num_classes) ** 2
    return (scores * 10).round() / 10 if ties else scores, boxes


def assert_equals_slow(found, scores, boxes, config):
    wanted = slow.select(scores.tolist(), boxes.tolist(), config.score, config.iou, config.before, config.at_most)
    assert found.scores.tolist() == [p for p, _, _ in wanted]
    assert found.labels.tolist() == [label for _, label, _ in wanted]
    assert found.boxes.tolist() == [box for _, _, box in wanted]


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(
    "config", [SelectConfig(), SelectConfig(score=0.3, iou=0.3), SelectConfig(before=50, at_most=10)], ids=str
)
def test_selection_equals_a_slow_class_wise_nms(config, ties):
    for seed in range(3):
        scores, boxes = crowded(150, 5, seed, ties)
        assert_equals_slow(select(scores, boxes, config), scores, boxes, config)


def test_boxes_of_other_classes_and_beyond_the_picture_do_not_suppress_each_other():
    boxes = torch.tensor([[-100.0, -100.0, 0.0, 0.0], [0.0, 0.0, 100.0, 100.0]])
    found = select(torch.tensor([[0.0, 0.9], [0.8, 0.0]]), boxes)
    assert found.labels.tolist() == [1, 0]


def test_nothing_is_found_where_no_score_exceeds_the_limit():
    found = select(torch.full((7, 2), 0.025), torch.rand(7, 4))
    assert [tuple(x.shape) for x in found] == [(0,), (0,), (0, 4)]


def test_boxes_that_are_no_numbers_are_left_out():
    scores, boxes = crowded(60, 3, 0)
    boxes[::3] = torch.nan
    boxes[1, 2] = torch.inf
    found = select(scores, boxes)
    assert len(found.scores)
    assert_equals_slow(found, scores, boxes, SelectConfig())


@pytest.mark.parametrize("num_points", [3, 150])
@pytest.mark.parametrize("config", [SelectConfig(), SelectConfig(score=0.3, before=60, at_most=7)], ids=str)
def test_in_a_graph_the_same_is_selected_in_every_picture(config, num_points):
    pictures = [crowded(num_points, 5, seed) for seed in range(3)]
    pictures.append((torch.zeros(num_points, 5), pictures[0][1]))
    scores, boxes = (torch.stack(parts) for parts in zip(*pictures, strict=True))
    found = DetectorWithSelection(Given(scores, boxes), config)(torch.zeros(4, 3, 32, 32))
    for place, picture in enumerate(pictures):
        wanted, num = select(*picture, config), int(found["num"][place])
        assert num == len(wanted.scores)
        assert torch.equal(found["scores"][place, :num], wanted.scores)
        assert torch.equal(found["labels"][place, :num], wanted.labels)
        assert torch.equal(found["boxes"][place, :num], wanted.boxes)
        assert (found["scores"][place, num:] == 0).all()
        assert (found["labels"][place, num:] == -1).all()
        assert (found["boxes"][place, num:] == 0).all()


class Dense(nn.Module):
    """One convolution: scores lie apart, so that their order is the same in every engine."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 8, stride=8)

    def forward(self, images):
        cells = self.conv(images).flatten(2).transpose(1, 2)
        low = 40 * cells[..., 2:4]
        return {"scores": cells[..., :2].sigmoid(), "boxes": torch.cat([low, low + 30 * cells[..., 4:].exp()], dim=-1)}


@pytest.mark.slow
def test_a_graph_with_selection_is_right_at_every_size_in_torch_and_onnx_runtime():
    network = DetectorWithSelection(Dense(), SelectConfig(score=0.5, before=100, at_most=15)).eval()
    captured = capture(network, torch.zeros(1, 3, 64, 64))
    assert captured.dynamic == ("batch", "height", "width")
    in_torch = captured.program.module()
    in_onnx = onnx_runner(to_onnx(captured).SerializeToString(), captured.form)
    sizes = [(1, 32, 64), (3, 96, 160), (1, 416, 416)]  # the first has fewer pairs than 100
    same = torch.zeros(1, 3, 416, 416)  # the same box everywhere: one is left
    for images in [*(torch.randn(batch, 3, height, width) for batch, height, width in sizes), same]:
        with torch.no_grad():
            wanted = network(images)
        assert ((wanted["num"] > 1) == (images is not same)).all()
        for run in (in_torch, in_onnx):
            torch.testing.assert_close(run(images), wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["onnx", "pt2", "xml"])
def test_a_file_with_selection_is_verified(suffix, tmp_path):
    network = DetectorWithSelection(Dense(), SelectConfig(score=0.5, before=100, at_most=15))
    native = 0.5 if suffix == "xml" else 0.8  # selection is nearly all of this network, and OpenVINO refers parts of it
    path, image = tmp_path / f"detector.{suffix}", torch.zeros(1, 3, 128, 128)
    seen = export(network, path, image, tolerance=1e-3, min_native=native)
    assert seen.dynamic == ("batch", "height", "width")
    assert seen.quadratic == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"score": -0.1}, r"score must lie in \[0, 1\]; got -0.1"),
        ({"iou": 60}, r"iou must lie in \[0, 1\]; got 60"),
        ({"before": 50}, r"at_most must lie in \[1, 50\].*got 100"),
        ({"at_most": 0}, r"at_most must lie in \[1, 1000\].*got 0"),
    ],
)
def test_a_bad_limit_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        SelectConfig(**options)
