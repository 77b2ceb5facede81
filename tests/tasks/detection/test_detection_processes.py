"""Boxes weigh the same whichever of two processes has them."""

import json

import pytest
import torch
from forked import call_in_two
from tiny_detector import SIZE, all_points, random_boxes

from castling.tasks.detection.boxes import decode, mean_distances
from castling.tasks.detection.losses import detection_losses
from castling.tasks.detection.model import DetectorConfig
from castling.training.processes import meet

pytestmark = pytest.mark.slow
CASES = [("v2", "atss"), ("v2", "task_aligned"), ("v1", "simota")]
HALVES = (slice(0, 2), slice(2, 4))


def losses_of(part):
    """Losses of some of four pictures, of which the first two have most boxes, and the size of their gradients."""
    torch.manual_seed(0)
    points, strides = all_points(*SIZE)
    logits = 2 * torch.randn(4, len(points), 4, 8, dtype=torch.float64)
    scores = torch.rand(4, len(points), 3, dtype=torch.float64) * 0.9 + 0.05
    boxes, labels = torch.stack([random_boxes(9) for _ in range(4)]), torch.randint(3, (4, 9))
    labels[2, 1:], labels[3] = -1, -1
    found = {}
    for head, assigner in CASES:
        leaves = [logits.clone().requires_grad_(), scores.clone().requires_grad_()]
        own_logits, own_scores = (leaf[part] for leaf in leaves)
        outputs = {"scores": own_scores, "distributions": own_logits, "points": points, "strides": strides}
        outputs["boxes"] = decode(mean_distances(own_logits), points, strides)
        losses = detection_losses(
            outputs, {"boxes": boxes[part], "labels": labels[part]}, DetectorConfig(head=head), assigner
        )
        losses.total.backward()
        parts = {name: float(value.detach()) for name, value in losses.parts.items()}
        found[f"{head} {assigner}"] = {**parts, "gradient": float(sum(leaf.grad.abs().sum() for leaf in leaves))}
    return found


def write_losses(folder):
    """What each of two processes does: the losses of its half."""
    rank = meet().process_index
    (folder / f"{rank}.json").write_text(json.dumps(losses_of(HALVES[rank])))


def test_boxes_weigh_in_two_processes_what_they_weigh_in_one(tmp_path):
    assert call_in_two(write_losses, tmp_path) == [0, 0]
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    for case, wanted in losses_of(slice(0, 4)).items():
        mean = {name: (first[case][name] + second[case][name]) / 2 for name in wanted}
        assert mean == pytest.approx(wanted, rel=1e-5), case
