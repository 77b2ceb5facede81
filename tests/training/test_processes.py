"""Several processes under torchrun train as one, and one can go on with what they began."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from forked import run_in_two

from castling.tasks.batches import Shard
from castling.training import RunFolder, train
from castling.training.checkpoint import load_last
from castling.training.evaluation import evaluate
from castling.training.recipe import recipe_text
from castling.training.saved import open_model

# Adam makes a whole step of a gradient that is but noise; this one keeps small differences small.
STEADY = "training.optimizer={name: momentum, momentum: 0.9, weight_decay: 0.01}"


def torchrun(processes, *arguments):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    result = subprocess.run(
        [*command, "-m", "castling", *map(str, arguments)], capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr[-3000:]


@pytest.mark.slow
def test_two_processes_have_the_losses_of_one_and_one_goes_on(any_micro, tmp_path):
    whole = any_micro(*any_micro.calm, STEADY, "training.max_steps=6")
    part = replace(whole, training=replace(whole.training, max_steps=3))
    (tmp_path / "recipe.yaml").write_text(recipe_text(part))
    command = ("train", tmp_path / "recipe.yaml", "--out", tmp_path / "two")
    if any_micro.torchrun:
        torchrun(2, *command)
    else:
        assert run_in_two(*command) == [0, 0]
    alone = any_micro(*any_micro.calm, STEADY, *any_micro.as_two, "training.max_steps=3")
    with pytest.MonkeyPatch.context() as patch:
        any_micro.halve(patch)
        train(alone, tmp_path / "one")
    runs = [RunFolder(tmp_path / name) for name in ("two", "one")]
    for ours, theirs in zip(*(run.steps() for run in runs), strict=True):
        assert ours.step == theirs.step
        assert ours.loss == pytest.approx(theirs.loss, abs=1e-4, rel=any_micro.drawn)
        assert list(ours.occupancy) == list(theirs.occupancy)
        for layer, found in ours.occupancy.items():
            assert found == pytest.approx(theirs.occupancy[layer], abs=1e-3)
    weights = load_last(runs[0].checkpoints).weights["model"]
    if not any_micro.drawn and not any(
        name.endswith("running_mean") for name in weights
    ):  # of which the first process has seen its part
        for ours, theirs in zip(*(run.evals() for run in runs), strict=True):
            assert [metric.value for metric in ours.model] == pytest.approx([m.value for m in theirs.model], abs=1e-4)

    for run in runs:
        (run.path / "config.yaml").write_text(recipe_text(whole))  # now to the end, on one process
        train(whole, run.path, resume=True)
    ends = [load_last(run.checkpoints) for run in runs]
    assert ends[0].step == ends[1].step > 3
    if any_micro.drawn:
        return
    for kind in ("model", "ema"):
        for name, value in ends[0].weights[kind].items():
            # Statistics of batch norms are those that the first process sees.
            if not name.endswith(("running_mean", "running_var", "num_batches_tracked")):
                torch.testing.assert_close(value, ends[1].weights[kind][name], atol=1e-5, rtol=0)


@pytest.mark.slow
def test_two_processes_evaluate_the_network_that_is_kept(any_micro, tmp_path):
    """Each has seen other pictures, so its batch norms have other statistics than those that are saved."""
    recipe = any_micro(*any_micro.calm, "training.max_steps=3")
    (tmp_path / "recipe.yaml").write_text(recipe_text(recipe))
    assert run_in_two("train", tmp_path / "recipe.yaml", "--out", tmp_path / "run") == [0, 0]
    logged = RunFolder(tmp_path / "run").evals()[-1]
    saved = open_model(tmp_path / "run")
    batches = saved.task.loader("val", recipe.training.batch_size)
    found = evaluate(saved.task, saved.network, batches, drop_branches=True)
    assert logged.step == saved.step == 3
    for ours, theirs in ((logged.model, found.model), (logged.castled, found.castled)):
        assert [metric.name for metric in ours] == [metric.name for metric in theirs]
        assert [metric.value for metric in ours] == pytest.approx([metric.value for metric in theirs], abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("any_micro", ["detection"], indirect=True)
def test_two_processes_that_were_stopped_and_evaluated_go_on_bit_equal(any_micro, tmp_path):
    whole = any_micro("training.max_steps=4", "training.accumulate=2")
    part = replace(whole, training=replace(whole.training, max_steps=3))
    for recipe, name in ((whole, "calm"), (part, "stopped")):
        (tmp_path / "recipe.yaml").write_text(recipe_text(recipe))
        assert run_in_two("train", tmp_path / "recipe.yaml", "--out", tmp_path / name) == [0, 0]
    (tmp_path / "stopped" / "config.yaml").write_text(recipe_text(whole))
    assert run_in_two("train", tmp_path / "stopped") == [0, 0]
    ours, theirs = (load_last(tmp_path / name / "checkpoints") for name in ("stopped", "calm"))
    assert ours.step == theirs.step == 4
    for kind, weights in theirs.weights.items():
        for name, value in weights.items():
            assert torch.equal(ours.weights[kind][name], value), name


@pytest.mark.slow
def test_two_processes_move_a_converted_network_over(micro, tmp_path):
    """At blend 0 its convolutions have no gradient, which processes must agree on."""
    converted = ("model.name=vit_tiny_patch16_224", "model.convert={calibrate: 0}", "training.threshold=null")
    blend = "training.blend={kind: linear, start: 0.0, end: 1.0, until: 0.9}"
    recipe = micro(*micro.calm, *converted, blend, "training.max_steps=3")
    (tmp_path / "recipe.yaml").write_text(recipe_text(recipe))
    assert run_in_two("train", tmp_path / "recipe.yaml", "--out", tmp_path / "two") == [0, 0]
    train(recipe, tmp_path / "one")
    two, one = ([record.loss for record in RunFolder(tmp_path / name).steps()] for name in ("two", "one"))
    assert two == pytest.approx(one, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["attention", "features"])
def test_two_processes_learn_from_the_original_as_one(micro, tmp_path, what):
    """The stages of a conversion: their losses call parts of the network, and processes must agree all the same."""
    converted = ("model.name=vit_tiny_patch16_224", "model.convert={calibrate: 0}", "training.threshold=null")
    settings = (STEADY, "training.blend={kind: fixed, start: 1.0}", f"imitate={what}", "training.max_steps=3")
    recipe = micro(*micro.calm, *converted, *settings)
    (tmp_path / "recipe.yaml").write_text(recipe_text(recipe))
    assert run_in_two("train", tmp_path / "recipe.yaml", "--out", tmp_path / "two") == [0, 0]
    halves = "training.accumulate=2"  # relative errors of half batches are not those of whole ones
    train(micro(*micro.calm, *converted, *settings, halves), tmp_path / "one")
    runs = [RunFolder(tmp_path / name) for name in ("two", "one")]
    two, one = ([record.loss for record in run.steps()] for run in runs)
    assert two == pytest.approx(one, rel=1e-4)
    ours, theirs = (load_last(run.checkpoints).weights["model"] for run in runs)
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], atol=1e-5, rtol=0)


def test_a_batch_that_processes_cannot_share_is_refused(micro, tmp_path):
    with pytest.raises(ValueError, match="batch_size 32 does not split into 3 processes"):
        micro(*micro.calm).make_task().loader("train", 32, seed=0, shard=Shard(0, 3))
