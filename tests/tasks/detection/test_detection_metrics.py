"""Average precision, held against pycocotools: another implementation, by COCO's authors."""

import contextlib
import copy
import io

import numpy as np
import pytest
import torch

from castling.tasks.detection.annotations import Objects
from castling.tasks.detection.decoding import Found, SelectConfig
from castling.tasks.detection.metrics import AveragePrecision, Judged, coco_results, coco_truth, judge

pytest.importorskip("faster_coco_eval")
LABELS = ["cat", "dog", "owl"]


def truth_of(boxes, labels, crowd):
    areas = (boxes[:, 2:] - boxes[:, :2]).double().prod(1, keepdim=True)
    return Objects(boxes, labels, crowd, torch.cat([boxes, areas], 1))


def random_boxes(rng, count, side=200):
    corners = rng.uniform(0, side, (count, 2))
    sides = rng.uniform(2, side / 2, (count, 2)) * rng.choice([0.1, 1.0], (count, 1))
    return torch.from_numpy(np.concatenate([corners, corners + sides], 1)).float()


def random_picture(rng, index, num_true, num_found, crowd=0.0, ties=False):
    """Half of what is found is near something that is there."""
    boxes, labels = random_boxes(rng, num_true), torch.from_numpy(rng.integers(0, 3, num_true))
    truth = truth_of(boxes, labels, torch.from_numpy(rng.random(num_true) < crowd))
    found = random_boxes(rng, num_found)
    seen_labels = torch.from_numpy(rng.integers(0, 3, num_found))
    if num_true:
        for place in range(0, num_found, 2):
            partner = rng.integers(num_true)
            found[place] = boxes[partner] + torch.from_numpy(rng.uniform(-3, 3, 4)).float()
            seen_labels[place] = labels[partner]
    scores = torch.from_numpy(rng.random(num_found)).float()
    scores = (scores * 4).round() / 4 if ties else scores
    order = scores.argsort(descending=True, stable=True)
    return Judged(index, (300, 300), truth, Found(scores[order], seen_labels[order], found[order]))


def by_pycocotools(pictures, num_classes):
    """COCO's six numbers, AP by class, and AP50 by class; ids do not start at 1."""
    coco = pytest.importorskip("pycocotools.coco")
    evaluation = pytest.importorskip("pycocotools.cocoeval")
    with contextlib.redirect_stdout(io.StringIO()):
        truth = coco.COCO()
        truth.dataset = copy.deepcopy(coco_truth(pictures, num_classes))
        ids = [17 + 5 * number for number in range(num_classes)]
        for category in truth.dataset["categories"]:
            category["id"] = ids[category["id"]]
        for annotation in truth.dataset["annotations"]:
            annotation["category_id"] = ids[annotation["category_id"]]
        truth.createIndex()
        found = evaluation.COCOeval(truth, truth.loadRes(coco_results(pictures, ids)), "bbox")
        found.evaluate()
        found.accumulate()
        found.summarize()
    precision = found.eval["precision"][:, :, :, 0, -1]  # (overlaps, recalls, classes)
    by_class = [[part[..., place] for place in range(num_classes)] for part in (precision, precision[0])]
    means = [[part[part > -1].mean() if (part > -1).any() else -1 for part in parts] for parts in by_class]
    return [*found.stats[:6], *means[0], *means[1]]


CASES = {
    "plain": [(4, 6, {}), (3, 5, {}), (2, 2, {})],
    "crowd": [(6, 10, {"crowd": 0.5}), (4, 8, {"crowd": 0.5}), (3, 3, {"crowd": 1.0})],
    "empty pictures": [(0, 4, {}), (5, 0, {}), (0, 0, {}), (4, 9, {})],
    "ties": [(8, 20, {"ties": True}), (6, 16, {"ties": True})],
    "more than 100 boxes": [(40, 160, {}), (120, 130, {})],
    "a class that is nowhere": [(1, 3, {})],
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_equals_pycocotools(case, seed):
    rng = np.random.default_rng(seed)
    pictures = [random_picture(rng, 9 + 4 * place, a, b, **more) for place, (a, b, more) in enumerate(CASES[case])]
    meter = AveragePrecision(LABELS, SelectConfig())
    meter.pictures = pictures[::2]
    other = AveragePrecision(LABELS, SelectConfig())
    other.pictures = pictures[1::2]
    meter.merge(other)  # as of another process: the order of pictures is another
    found = {metric.name: metric.value for metric in meter.result()}
    names = ["ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large"]
    names += [f"{name}_of_{label}" for name in ("ap", "ap50") for label in LABELS]
    wanted = dict(zip(names, by_pycocotools(pictures, len(LABELS)), strict=True))
    wanted = {name: value for name, value in wanted.items() if value > -1}
    assert found == pytest.approx(wanted, abs=1e-6)


def test_perfect_and_useless_detectors():
    boxes, labels = torch.tensor([[10.0, 10.0, 60.0, 60.0]]), torch.tensor([1])
    truth = truth_of(boxes, labels, torch.tensor([False]))
    meter = AveragePrecision(LABELS, SelectConfig())
    meter.pictures = [Judged(0, (80, 80), truth, Found(torch.tensor([0.9]), labels, boxes))]
    assert meter.result()[0].value == pytest.approx(1)
    assert [metric.name for metric in meter.result() if metric.detail] == ["ap_of_dog", "ap50_of_dog"]
    nothing = Found(torch.zeros(0), torch.zeros(0, dtype=torch.int64), torch.zeros(0, 4))
    meter.pictures = [Judged(0, (80, 80), truth, nothing)]
    assert {metric.name: metric.value for metric in meter.result()} == {
        "ap": 0, "ap50": 0, "ap75": 0, "ap_medium": 0, "ap_of_dog": 0, "ap50_of_dog": 0
    }  # fmt: skip


def test_outputs_are_judged_in_the_pixels_of_the_picture():
    outputs = {"scores": torch.tensor([[[0.9, 0.0, 0.0], [0.01, 0.0, 0.0]]]), "boxes": torch.zeros(1, 2, 4)}
    outputs["boxes"][0, 0] = torch.tensor([-4.0, 8.0, 16.0, 40.0])
    batch = {
        "image": torch.zeros(1, 3, 32, 64),
        "written": [np.array([[0.0, 16.0, 64.0, 80.0, 50.0]])],
        "labels": torch.tensor([[0, -1]]),
        "crowd": torch.tensor([[False, False]]),
        "size": torch.tensor([[64, 256]]),
        "index": torch.tensor([5]),
    }
    (seen,) = judge(outputs, batch, SelectConfig())
    assert (seen.index, seen.size) == (5, (256, 64))
    assert seen.truth.boxes.tolist() == [[0.0, 16.0, 64.0, 64.0]]  # as it is drawn
    assert seen.truth.written.tolist() == [[0.0, 16.0, 64.0, 80.0, 50.0]]
    assert seen.found.boxes.tolist() == [[0.0, 16.0, 64.0, 64.0]]  # cut at the border
    meter = AveragePrecision(LABELS, SelectConfig())
    meter.update(outputs, batch)
    found = {metric.name: metric.value for metric in meter.result()}
    assert found["ap"] == pytest.approx(0.6)  # 0.75 of the box that is written, of which a quarter is outside
    assert found["ap_small"] == pytest.approx(0.6)  # by the area that is written
    assert "ap_medium" not in found


def test_nothing_to_evaluate_on_is_said():
    meter = AveragePrecision(LABELS, SelectConfig())
    with pytest.raises(ValueError, match="no readable picture"):
        meter.result()
    empty = truth_of(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.bool))
    meter.pictures = [
        Judged(0, (8, 8), empty, Found(*(part[:0] for part in (torch.zeros(0), empty.labels, empty.boxes))))
    ]
    with pytest.raises(ValueError, match="none of the 1 pictures to evaluate on has a box"):
        meter.result()
