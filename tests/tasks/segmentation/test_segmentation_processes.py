"""Segmentation in two processes is segmentation in one: losses of masks, however many each has, and metrics."""

import json

import numpy as np
import pytest
import torch
from forked import call_in_two
from mask_pictures import draw_scene, mask_recipe, write_masks
from PIL import Image
from tiny_segmenter import tiny_config
from torch import nn

from castling.measure.metric import as_values
from castling.tasks.batches import Shard
from castling.tasks.segmentation.losses import IGNORE, segmentation_losses
from castling.tasks.segmentation.metrics import label_maps
from castling.training import parse_recipe
from castling.training.evaluation import evaluate
from castling.training.processes import meet

pytestmark = pytest.mark.slow
HALVES = (slice(0, 3), slice(3, 6))


def some_predictions():
    """Of two layers for six pictures, with their labels: nine masks in the first half, two in the other."""
    generator = torch.Generator().manual_seed(0)
    classes, masks = (torch.randn(2, 6, 5, *size, generator=generator) for size in ((4,), (16, 24)))
    labels = torch.full((6, 64, 96), IGNORE)
    labels[:3] = (torch.arange(96) // 32)[None, None]
    labels[3, :, 20:50], labels[3, 40:] = 1, 2
    return classes, masks, labels


def losses_of(part):
    """The losses of some of the pictures, at points that are the same for every mask: each call draws others."""
    draw = torch.rand

    def same_points(num_masks, *shape, device=None):
        return draw(*shape, generator=torch.Generator().manual_seed(1)).repeat(num_masks, 1, 1)

    classes, masks, labels = some_predictions()
    outputs = {"class_logits": list(classes[:, part]), "mask_logits": list(masks[:, part])}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "rand", same_points)
        parts = segmentation_losses(outputs, labels[part], tiny_config("mask2former"), 3).parts
    return {name: float(value) for name, value in parts.items()}


def write_losses(folder):
    """What each of two processes does: the losses of its half."""
    rank = meet().process_index
    (folder / f"{rank}.json").write_text(json.dumps(losses_of(HALVES[rank])))


def test_masks_weigh_in_two_processes_what_they_weigh_in_one(tmp_path):
    pytest.importorskip("transformers")
    assert call_in_two(write_losses, tmp_path) == [0, 0]
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    mean = {name: (found[0][name] + found[1][name]) / 2 for name in found[0]}
    whole, halves = losses_of(slice(0, 6)), [losses_of(half) for half in HALVES]
    for name in ("mask", "dice"):
        assert mean[name] == pytest.approx(whole[name], rel=1e-5)
    # Classes have a weighted mean over the queries of a process, as with gradient accumulation.
    assert [one["cross_entropy"] for one in found] == pytest.approx([one["cross_entropy"] for one in halves], rel=1e-5)


class ByColour(nn.Module):
    """Tells red from blue, and is wrong where they end: scores of a cell depend on its own pixels alone."""

    def forward(self, images):
        red, _, blue = nn.functional.avg_pool2d(images, 4).unbind(1)
        return torch.stack([torch.full_like(red, 0.5), red - blue, blue - red], 1)


def evaluate_part(root, folder):
    """What each of two processes does: an evaluation of all pictures, of which it sees its own."""
    rank, task = meet().process_index, parse_recipe(mask_recipe(root)).make_task()
    meters, meter = [], task.meter
    task.meter = lambda: meters.append(meter()) or meters[-1]
    found = evaluate(task, ByColour(), task.loader("val", 2, shard=Shard(rank, 2)))
    content = {"metrics": as_values(found.model), "counts": meters[0].counts.tolist()}
    (folder / f"{rank}.json").write_text(json.dumps(content))


def count_by_hand(root):
    """Pixels of each class that were taken for each, by masks as they are in the files: a picture at a time."""
    task, counts = parse_recipe(mask_recipe(root)).make_task(), np.zeros((3, 3), int)
    for path, batch in zip(sorted((root / "annotations" / "val").iterdir()), task.loader("val", 1), strict=True):
        [found] = label_maps(ByColour()(batch["image"]), batch)
        for truth, seen in zip(np.asarray(Image.open(path)).ravel(), found.numpy().ravel(), strict=True):
            if truth != IGNORE:
                counts[truth, seen] += 1
    return counts


def test_metrics_of_an_odd_number_of_pictures_are_exact(tmp_path):
    root = write_masks(tmp_path / "shapes", num_val=7, size=(70, 50))
    picture, mask = draw_scene(np.random.default_rng(0), 41, 67)
    picture.save(root / "images" / "val" / "003.png")
    mask.save(root / "annotations" / "val" / "003.png")
    Image.new("L", (70, 50), IGNORE).save(root / "annotations" / "val" / "005.png")
    assert call_in_two(evaluate_part, root, tmp_path) == [0, 0]
    one, other = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    counts = count_by_hand(root)
    assert np.add(one["counts"], other["counts"]).tolist() == counts.tolist()
    assert min(np.sum(one["counts"]), np.sum(other["counts"])) > 0
    assert one["metrics"] == other["metrics"]
    right = [counts[label, label] for label in range(3)]
    rows, columns = counts.sum(1), counts.sum(0)
    ious = [right[label] / (rows[label] + columns[label] - right[label]) for label in range(3)]
    wanted = {
        "miou": sum(ious) / 3,
        "macc": sum(right[label] / rows[label] for label in range(3)) / 3,
        "pacc": sum(right) / counts.sum(),
    }
    assert 0.5 < wanted["miou"] < 1
    assert {name: one["metrics"][name] for name in wanted} == pytest.approx(wanted, abs=1e-12)
