"""Losses equal loops over their equations, and stay finite whatever the boxes are."""

import math

import pytest
import slow_detection as slow
import torch
from tiny_detector import SIZE, all_points, random_boxes, tiny_detector

from castling.tasks.detection.boxes import decode, mean_distances
from castling.tasks.detection.focal import distribution_focal, varifocal
from castling.tasks.detection.losses import WEIGHTS, detection_losses
from castling.tasks.detection.model import DetectorConfig

HEIGHT, WIDTH = SIZE
ASSIGNERS = ("atss", "task_aligned", "simota")
PARTS = ("vfl", "giou", "dfl")
WHOLE = [0.0, 0.0, WIDTH, HEIGHT]
BOXES = {
    "no boxes": torch.zeros(2, 0, 4),
    "only padding": torch.zeros(2, 3, 4),
    "one pixel": torch.tensor([[[0, 0, 1, 1], [WIDTH - 1, HEIGHT - 1, WIDTH, HEIGHT]], [[20, 30, 21, 31]] * 2]),
    "no area": torch.tensor([[[5, 5, 5, 5.0]], [[8, 8, 40, 8]]]),
    "500 boxes": torch.cat([random_boxes(500)[None], random_boxes(500)[None]]),
    "every border": torch.tensor(
        [[[0, 0, 9, HEIGHT], [0, 0, WIDTH, 9]], [[55, 0, WIDTH, HEIGHT], [0, 87, 64, HEIGHT]]]
    ),
    "the whole picture": torch.tensor([[WHOLE], [WHOLE]]),
}


def targets_of(name):
    boxes = BOXES[name].float()
    labels = torch.randint(3, boxes.shape[:2])
    return {"boxes": boxes, "labels": torch.full_like(labels, -1) if name == "only padding" else labels}


def test_varifocal_loss_equals_its_equation():
    p = torch.rand(40, dtype=torch.float64) * 0.98 + 0.01
    q = torch.rand(40, dtype=torch.float64) * (torch.arange(40) % 3 > 0)
    wanted = [slow.varifocal(*pair) for pair in zip(p.tolist(), q.tolist(), strict=True)]
    torch.testing.assert_close(varifocal(p, q), torch.tensor(wanted, dtype=torch.float64))


@pytest.mark.parametrize("q", [0.0, 0.3, 1.0])
def test_varifocal_loss_and_its_gradient_are_finite_for_certain_scores(q):
    p = torch.tensor([0.0, 1e-30, 1.0], requires_grad=True)
    loss = varifocal(p, torch.full((3,), q))
    loss.sum().backward()
    assert loss.isfinite().all()
    assert p.grad.isfinite().all()


def test_distribution_focal_loss_equals_its_equation():
    logits = 3 * torch.randn(50, 8, dtype=torch.float64)
    y = torch.cat([torch.rand(40, dtype=torch.float64) * 9 - 1, torch.arange(10, dtype=torch.float64) - 1])
    wanted = [slow.distribution_focal(*pair) for pair in zip(logits.tolist(), y.tolist(), strict=True)]
    torch.testing.assert_close(distribution_focal(logits, y), torch.tensor(wanted, dtype=torch.float64))


def test_distribution_focal_loss_is_least_where_the_mean_is_the_distance():
    logits = torch.full((1, 8), -1e4)
    logits[0, 2], logits[0, 3] = math.log(0.75), math.log(0.25)
    y = torch.linspace(0, 6.8, 69)
    least = distribution_focal(logits.clamp(min=-30).expand(69, -1), y).argmin()
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert float(distribution_focal(logits, torch.tensor([2.25]))) == pytest.approx(entropy)
    assert 2 <= y[least] <= 2.25  # all of the weight on the likelier neighbour costs least


def random_outputs():
    points, strides = all_points(*SIZE)
    logits = 2 * torch.randn(2, len(points), 4, 8, dtype=torch.float64)
    boxes = decode(mean_distances(logits), points, strides)
    scores = torch.rand(2, len(points), 3, dtype=torch.float64) * 0.9 + 0.05
    return {"scores": scores, "boxes": boxes, "distributions": logits, "points": points, "strides": strides}


def slow_losses(outputs, boxes, labels, head, assigner):
    """The three losses of a batch, without their weights, point by point."""
    points, strides = outputs["points"].tolist(), outputs["strides"].tolist()
    sums, counted, num_positive = dict.fromkeys(PARTS, 0.0), 0.0, 0
    for scores, predicted, logits, its_boxes, its_labels in zip(
        *(outputs[name].tolist() for name in ("scores", "boxes", "distributions")), boxes, labels, strict=True
    ):
        given = {
            "atss": (points, strides, its_boxes, predicted),
            "task_aligned": (points, its_boxes, its_labels, scores, predicted),
            "simota": (points, strides, its_boxes, its_labels, scores, predicted),
        }
        owners = getattr(slow, assigner)(*given[assigner])
        num_positive += len(owners)
        for a, row in enumerate(scores):
            box, quality = owners.get(a, (None, 0.0))
            for label, p in enumerate(row):
                is_own = box is not None and its_labels[box] == label
                sums["vfl"] += slow.varifocal(p, quality if is_own else 0.0)
            if box is None:
                continue
            weight = quality if head == "v2" else max(row)
            counted += weight
            sums["giou"] += weight * (1 - slow.giou(predicted[a], its_boxes[box]))
            (x, y), (x0, y0, x1, y1) = points[a], its_boxes[box]
            for side, distance in enumerate((x - x0, y - y0, x1 - x, y1 - y)):
                sums["dfl"] += weight * slow.distribution_focal(logits[a][side], distance / strides[a]) / 4
    by_class = counted if head == "v2" else num_positive
    return {name: sums[name] / max(by_class if name == "vfl" else counted, 1) for name in sums}


@pytest.mark.parametrize("head", ["v2", "v1"])
@pytest.mark.parametrize("assigner", ASSIGNERS)
def test_losses_of_a_batch_equal_a_loop_over_its_points(head, assigner):
    outputs = random_outputs()
    boxes, labels = [random_boxes(5).tolist(), random_boxes(2).tolist()], [[0, 1, 2, 0, 1], [2, 2]]
    wanted = slow_losses(outputs, boxes, labels, head, assigner)
    padding = [[7.0, 7.0, 30.0, 30.0]]  # which stands in the middle: a place is not a number of a box
    padded = {
        "boxes": torch.tensor([boxes[0], [*boxes[1][:1], *(3 * padding), *boxes[1][1:]]], dtype=torch.float64),
        "labels": torch.tensor([labels[0], [2, -1, -1, -1, 2]]),
    }
    found = detection_losses(outputs, padded, DetectorConfig(head=head), assigner)
    for name, weight in zip(PARTS, {"v2": (1.0, 2.5, 0.5), "v1": (1.0, 2.0, 0.25)}[head], strict=True):
        assert float(found.parts[name]) == pytest.approx(weight * wanted[name], rel=1e-6), name
    assert float(found.total) == pytest.approx(sum(map(float, found.parts.values())))


@pytest.mark.parametrize("assigner", ASSIGNERS)
@pytest.mark.parametrize("head", ["v2", "v1"])
def test_losses_and_gradients_are_finite_whatever_the_boxes_are(head, assigner):
    detector = tiny_detector(head=head)
    for name in BOXES:
        detector.zero_grad()
        found = detection_losses(detector(torch.randn(2, 3, *SIZE)), targets_of(name), detector.config, assigner)
        found.total.backward()
        assert found.total.isfinite(), name
        assert all(p.grad is not None and p.grad.isfinite().all() for p in detector.parameters()), name


@pytest.mark.parametrize("assigner", ASSIGNERS)
def test_losses_are_computed_in_float32_under_autocast(assigner):
    detector = tiny_detector()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = detection_losses(detector(torch.randn(2, 3, *SIZE)), targets_of("500 boxes"), detector.config, assigner)
    found.total.backward()
    assert {part.dtype for part in found.parts.values()} == {torch.float32}
    assert all(p.grad.isfinite().all() for p in detector.parameters())


@pytest.mark.parametrize("assigner", ASSIGNERS)
def test_a_network_that_gives_no_number_gives_no_loss_but_crashes_nothing(assigner):
    detector = tiny_detector()
    outputs = detector(torch.full((2, 3, *SIZE), math.nan))
    assert not detection_losses(outputs, targets_of("every border"), detector.config, assigner).total.isfinite()


def test_background_alone_pushes_scores_down_and_moves_no_box():
    detector = tiny_detector()
    found = detection_losses(detector(torch.randn(2, 3, *SIZE)), targets_of("no boxes"), detector.config, "atss")
    assert found.parts["vfl"] > 0
    assert found.parts["giou"] == found.parts["dfl"] == 0


def test_boxes_are_learned():
    detector = tiny_detector()
    images, targets = torch.randn(2, 3, *SIZE), targets_of("every border")
    optimizer = torch.optim.AdamW(detector.parameters(), lr=1e-2)
    losses = []
    for step in range(24):
        found = detection_losses(detector(images), targets, detector.config, "atss" if step < 12 else "task_aligned")
        optimizer.zero_grad()
        found.total.backward()
        optimizer.step()
        losses.append(found.parts["giou"].item())
    assert losses[-1] < 0.7 * losses[0]


def test_an_unknown_assigner_is_named_with_the_legal_ones():
    with pytest.raises(ValueError, match=r"unknown assigner 'ats'.*'simota'"):
        detection_losses({}, {}, DetectorConfig(), "ats")


def test_weights_are_those_of_picodet():
    assert WEIGHTS["v2"] == (1.0, 2.5, 0.5)
    assert WEIGHTS["v1"] == (1.0, 2.0, 0.25)
