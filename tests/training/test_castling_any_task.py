"""The certificate of every task: free where the masks are empty, with numbers where they are open."""

import json

import pytest
import torch

from castling.training import RunFolder, train
from castling.training.saved import open_model
from castling.workflows.castle_run import castle_run

pytestmark = pytest.mark.slow


def test_a_run_whose_masks_are_empty_is_castled_for_free(any_micro, tmp_path):
    train(any_micro("training.threshold={kind: linear, start: 0.05, end: 1.0, until: 0.5}"), tmp_path)
    certificate, folder = castle_run(tmp_path, tolerance=0)
    assert certificate.verdict == "free"
    assert certificate.state_dict_equal
    assert certificate.quadratic_tensors == []
    before, after = certificate.networks.values()
    assert (before.agreement, before.largest_difference) == (1, 0)
    assert before.metrics == after.metrics
    logged = RunFolder(tmp_path).evals()[-1].castled
    assert [metric.name for metric in after.metrics] == [metric.name for metric in logged]
    assert [metric.value for metric in after.metrics] == pytest.approx([metric.value for metric in logged], abs=1e-6)
    assert json.loads((folder / "certificate.json").read_text())["verdict"] == "free"
    weights = open_model(tmp_path).network.state_dict()
    for name, value in open_model(folder).network.state_dict().items():
        assert torch.equal(value, weights[name]), name


def test_open_masks_are_not_free(any_micro, tmp_path):
    train(any_micro("training.threshold={kind: fixed, start: 0.0}", "training.max_steps=1"), tmp_path)
    certificate, _ = castle_run(tmp_path, tolerance=100)
    assert certificate.verdict == "cheap"
    assert certificate.networks["with branch"].largest_difference > 0
    assert all(layer.opened and min(layer.occupancy) > 0 for layer in certificate.layers)
    assert any("still open" in line for line in certificate.advice)
