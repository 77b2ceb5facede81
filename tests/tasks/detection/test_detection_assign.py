"""Assigners equal loops written from the papers, on random pictures, on ties and on degenerate boxes."""

import math

import pytest
import slow_detection as slow
import torch
from tiny_detector import SIZE, all_points, random_boxes

from castling.tasks.detection.assign import atss, simota, task_aligned

HEIGHT, WIDTH = SIZE
CLASSES = 4


def near(boxes, count):
    """Predictions of which most are somewhere near a box."""
    chosen = boxes[torch.randint(len(boxes), (count,))] if len(boxes) else random_boxes(count)
    moved = chosen + 6 * torch.randn(count, 4, dtype=torch.float64)
    return torch.cat([moved[:, :2], torch.maximum(moved[:, 2:], moved[:, :2] + 0.5)], dim=1)


def random_case(seed, count):
    torch.manual_seed(seed)
    boxes, points = random_boxes(count), all_points(*SIZE)[0]
    scores = torch.rand(len(points), CLASSES, dtype=torch.float64) * 0.98 + 0.01
    return boxes, torch.randint(CLASSES, (count,)), scores, near(boxes, len(points))


def tied_case(seed):
    """Equal boxes, centres on the borders of cells, and a network that says the same everywhere."""
    boxes, labels, scores, predicted = random_case(seed, 8)
    boxes = (boxes / 16).round() * 16
    boxes[:, 2:] = torch.maximum(boxes[:, 2:], boxes[:, :2] + 16)
    boxes[4:] = boxes[:4]
    said = boxes[:1] + 0.7  # no ten overlaps with it sum up to a whole number, to which rounding would matter
    return boxes, labels, torch.full_like(scores, 0.5), said.expand_as(predicted).clone()


def degenerate_case(seed):
    """Boxes of one pixel, along every border, as large as the picture, and without an area."""
    boxes, _, scores, _ = random_case(seed, 0)
    x, y = WIDTH, HEIGHT
    sides = [(0, 0, 5, y), (0, 0, x, 5), (x - 5, 0, x, y), (0, y - 5, x, y)]
    boxes = torch.tensor([(0, 0, 1, 1), (x - 1, y - 1, x, y), (33, 17, 34, 18), *sides, (0, 0, x, y), (9, 9, 9, 9)])
    boxes = boxes.double()
    return boxes, torch.randint(CLASSES, (len(boxes),)), scores, near(boxes, len(scores))


def case_without_numbers(seed):
    """The network gives what is no number at some points."""
    boxes, labels, scores, predicted = random_case(seed, 6)
    predicted[::5], predicted[1::7, 2], scores[2::9] = math.nan, math.inf, math.nan
    return boxes, labels, scores, predicted


CASES = {
    **{f"{count} boxes, {seed}": (random_case, seed, count) for count in (1, 3, 25) for seed in range(3)},
    **{f"ties, {seed}": (tied_case, seed) for seed in range(4)},
    **{f"degenerate, {seed}": (degenerate_case, seed) for seed in range(3)},
    **{f"no numbers, {seed}": (case_without_numbers, seed) for seed in range(3)},
}


def run(assigner, boxes, labels, scores, predicted):
    points, strides = all_points(*SIZE)
    given = {
        atss: (points, strides, boxes, predicted),
        task_aligned: (points, boxes, labels, scores, predicted),
        simota: (points, strides, boxes, labels, scores, predicted),
    }[assigner]
    return assigner(*given), getattr(slow, assigner.__name__)(*(x.tolist() for x in given))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("assigner", [atss, task_aligned, simota])
def test_an_assigner_equals_the_loop_of_its_paper(assigner, case):
    make, *options = CASES[case]
    found, wanted = run(assigner, *make(*options))
    owned = {a: box for a, box in enumerate(found.box.tolist()) if box >= 0}
    assert owned == {a: box for a, (box, _) in wanted.items()}
    qualities = torch.zeros_like(found.quality)
    for a, (_, quality) in wanted.items():
        qualities[a] = quality if math.isfinite(quality) else 0
    torch.testing.assert_close(found.quality, qualities, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("assigner", [atss, task_aligned, simota])
def test_without_boxes_all_is_background(assigner):
    found, wanted = run(assigner, *random_case(0, 0))
    assert wanted == {}
    assert (found.box == -1).all()
    assert (found.quality == 0).all()


@pytest.mark.parametrize("assigner", [task_aligned, simota])
def test_a_network_that_gives_no_number_anywhere_is_assigned_nothing(assigner):
    boxes, labels, scores, predicted = random_case(0, 5)
    found, _ = run(assigner, boxes, labels, scores * math.nan, predicted * math.nan)
    assert (found.box == -1).all()
    assert (found.quality == 0).all()


def test_atss_assigns_as_ever_where_the_network_gives_no_number():
    boxes, labels, scores, predicted = random_case(0, 5)
    (found, _), (usual, _) = (run(atss, boxes, labels, scores, x) for x in (predicted * math.nan, predicted))
    assert torch.equal(found.box, usual.box)
    assert (found.quality == 0).all()


def test_points_lie_in_the_boxes_that_atss_and_task_alignment_give_them():
    points = all_points(*SIZE)[0].tolist()
    for assigner in (atss, task_aligned):
        boxes, labels, scores, predicted = random_case(1, 20)
        found, _ = run(assigner, boxes, labels, scores, predicted)
        owned = [(a, box) for a, box in enumerate(found.box.tolist()) if box >= 0]
        assert owned
        assert all(slow.is_inside(points[a], boxes[box].tolist()) for a, box in owned)


def test_simota_finds_a_point_for_a_box_between_all_points():
    boxes = torch.tensor([[31.5, 31.5, 32.5, 32.5]], dtype=torch.float64)
    scores = torch.full((128, CLASSES), 0.1, dtype=torch.float64)
    found, _ = run(simota, boxes, torch.tensor([2]), scores, near(boxes, 128))
    assert (found.box >= 0).sum() >= 1
