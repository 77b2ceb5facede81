"""Segmentation in two processes is segmentation in one: the losses of masks, however many each process has."""

import json

import pytest
import torch
from forked import call_in_two
from tiny_segmenter import tiny_config

from castling.tasks.segmentation.losses import IGNORE, segmentation_losses
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
