"""Several processes under torchrun train as one, and one can go on with what they began."""

import subprocess
import sys

import pytest

from castling.training import RunFolder, train
from castling.training.checkpoint import load_last
from castling.training.recipe import recipe_text

CALM = ("augment.mixup=0", "model.options.drop_rate=0")


def torchrun(processes, *arguments):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    result = subprocess.run(
        [*command, "-m", "castling", *map(str, arguments)], capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr[-3000:]


def test_two_processes_have_the_losses_of_one_and_one_goes_on(micro, tmp_path):
    recipe = micro(*CALM, "training.max_steps=5")
    (tmp_path / "recipe.yaml").write_text(recipe_text(recipe))
    torchrun(2, "train", tmp_path / "recipe.yaml", "--out", tmp_path / "two")
    train(recipe, tmp_path / "one")
    two, one = (RunFolder(tmp_path / name).log_lines() for name in ("two", "one"))
    assert [line["step"] for line in two] == [line["step"] for line in one]
    for ours, theirs in zip(two, one, strict=True):
        if ours["kind"] == "step":
            assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-4)
            assert ours["occupancy"]["blocks.0.attn"] == pytest.approx(theirs["occupancy"]["blocks.0.attn"], abs=1e-3)
        else:
            assert ours["model"] == pytest.approx(theirs["model"], abs=1e-4)

    whole = micro(*CALM)
    for name in ("two", "one"):
        (tmp_path / name / "config.yaml").write_text(recipe_text(whole))  # now to the end, on one process
        train(whole, tmp_path / name, resume=True)
    ends = [load_last(tmp_path / name / "checkpoints") for name in ("two", "one")]
    assert [end.step for end in ends] == [6, 6]
    losses = [RunFolder(tmp_path / name).log_lines()[-2]["loss"] for name in ("two", "one")]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)


def test_two_processes_move_a_converted_network_over(micro, tmp_path):
    """At blend 0 its convolutions have no gradient, which processes must agree on."""
    converted = ("model.name=vit_tiny_patch16_224", "model.convert={calibrate: 0}", "training.threshold=null")
    blend = "training.blend={kind: linear, start: 0.0, end: 1.0, until: 0.9}"
    recipe = micro(*CALM, *converted, blend, "training.max_steps=3")
    (tmp_path / "recipe.yaml").write_text(recipe_text(recipe))
    torchrun(2, "train", tmp_path / "recipe.yaml", "--out", tmp_path / "two")
    train(recipe, tmp_path / "one")
    two, one = ([line["loss"] for line in RunFolder(tmp_path / name).log_lines()[:3]] for name in ("two", "one"))
    assert two == pytest.approx(one, abs=1e-4)


def test_a_batch_that_processes_cannot_share_is_refused(micro, tmp_path):
    from castling.tasks import Shard

    with pytest.raises(ValueError, match="batch_size 32 does not split into 3 processes"):
        micro(*CALM).make_task().build_loader("train", 32, seed=0, shard=Shard(0, 3))
