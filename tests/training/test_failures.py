"""Failures: numbers that are not finite, disks that are full, pictures that cannot be read."""

import errno
import json
import os
import shutil
import subprocess
import sys
import textwrap
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from castling.cli.main import main
from castling.measure.metric import Metric
from castling.tasks.classification.task import Classification
from castling.tasks.picture_sources import FolderSource
from castling.tasks.task import Losses
from castling.training import RunFolder, TrainingFailed, load_recipe, loop, train
from castling.training.checkpoint import load_last, save_checkpoint
from castling.training.evaluation import Evaluation
from castling.training.recipe import recipe_text
from castling.training.saved import open_model
from castling.training.state import Progress, RunState


def poison(monkeypatch, when, what="loss"):
    """Make the losses of some calls NaN, or their gradients."""
    losses, calls = Classification.losses, []

    def poisoned(self, model, batch):
        calls.append(len(calls))
        if when(calls[-1]):
            if what == "picture":
                batch["image"][0] = float("nan")
                return losses(self, model, batch)
            factor = float("nan") if what == "loss" else 1.0
            loss = losses(self, model, batch).total * factor
            if what == "gradient":
                loss.register_hook(lambda gradient: gradient * float("inf"))
            return Losses(loss, {})
        return losses(self, model, batch)

    monkeypatch.setattr(Classification, "losses", poisoned)
    return calls


@pytest.mark.parametrize("what", ["loss", "gradient", "picture"])
def test_a_bad_step_is_skipped_and_counted(micro, tmp_path, monkeypatch, what):
    poison(monkeypatch, lambda call: call == 2, what)
    summary = train(micro(), tmp_path / "run")
    assert (summary["skipped_steps"], summary["rollbacks"], summary["steps"]) == (1, 0, 6)
    last = load_last(tmp_path / "run" / "checkpoints")
    for weights in last.weights.values():
        assert all(torch.isfinite(value).all() for value in weights.values())


def test_a_bad_batch_does_not_poison_running_statistics(micro, tmp_path, monkeypatch):
    poison(monkeypatch, lambda call: call == 1, "picture")
    model = "model={name: castling_lcnet_vit_small, options: {scale: 0.25, transformer: false}}"
    sizes = ("data.image_size=64", "training.batch_size=4", "training.max_steps=2", "data.channels=3")
    colour = ("data.mean=[0, 0, 0]", "data.std=[1, 1, 1]", "training.threshold=null", "augment.mixup=0")
    monkeypatch.setattr(loop, "evaluate", lambda *args, **options: Evaluation([Metric("top1", 0.0)], None, {}))
    summary = train(micro(model, *sizes, *colour), tmp_path / "run")
    assert summary["skipped_steps"] == 1
    weights = load_last(tmp_path / "run" / "checkpoints").weights["ema"]
    assert all(torch.isfinite(value).all() for value in weights.values())
    assert any("running_mean" in name for name in weights)


def test_several_bad_steps_go_back_with_a_lower_rate(micro, tmp_path, monkeypatch):
    poison(monkeypatch, lambda call: 3 <= call < 6)
    constant = "training.learning_rate={kind: constant, peak: 0.002}"
    summary = train(micro("training.bad_steps=3", constant), tmp_path / "run")
    assert (summary["rollbacks"], summary["skipped_steps"], summary["steps"]) == (1, 3, 6)
    steps = RunFolder(tmp_path / "run").steps()
    assert [record.learning_rate for record in steps] == [0.002] * 3 + [0.001] * 3
    assert [record.step for record in steps] == list(range(6))
    assert "went back" in (tmp_path / "run" / "events.jsonl").read_text()


def test_endless_trouble_stops_with_the_last_good_checkpoint_kept(micro, tmp_path, monkeypatch):
    poison(monkeypatch, lambda call: call >= 4)
    with pytest.raises(TrainingFailed, match=r"after 2 returns to a good checkpoint already.*learning_rate.peak"):
        train(micro("training.bad_steps=2", "training.max_rollbacks=2"), tmp_path / "run")
    assert load_last(tmp_path / "run" / "checkpoints").step == 3


def test_poisoned_weights_are_never_saved(tmp_path, micro):
    model = torch.nn.Linear(2, 2)
    state = RunState(model, torch.optim.SGD(model.parameters()), None, None, Progress())
    with torch.no_grad():
        model.weight[0, 0] = float("inf")
    with pytest.raises(Exception, match="weight is not finite"):
        state.save(None, 0.0)


@pytest.fixture
def small_disk(tmp_path):
    """A file system with room for little more than one checkpoint."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = os.geteuid() == 0 and shutil.which("mount")
    if not mounted or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", disk]).returncode:
        pytest.skip("only root may mount a small file system; the quota test covers the rest")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_a_full_disk_stops_the_run_loudly_and_it_goes_on_when_there_is_room(micro, small_disk, tmp_path):
    recipe = micro("training.epochs=3")
    with pytest.raises(OSError, match=r"cannot save .*No space left.*The last good checkpoint is step-0000"):
        train(recipe, small_disk / "run")
    assert not list((small_disk / "run" / "checkpoints").glob(".*"))
    shutil.copytree(small_disk / "run", tmp_path / "roomy")
    train(recipe, tmp_path / "roomy", resume=True)
    train(recipe, tmp_path / "calm")
    assert (tmp_path / "roomy" / "log.jsonl").read_bytes() == (tmp_path / "calm" / "log.jsonl").read_bytes()


def test_a_read_only_folder_is_said_before_training(micro, tmp_path):
    target = tmp_path / "locked"
    target.mkdir()
    if os.geteuid() == 0:  # permissions do not hold root back; a read-only file system does
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", target]).returncode:
            pytest.skip("no read-only file system can be mounted")
    else:
        target.chmod(0o500)
    try:
        with pytest.raises(OSError, match="cannot write to the run folder"):
            train(micro(), target / "run")
    finally:
        if os.geteuid() == 0:
            subprocess.run(["umount", target], check=True)


@pytest.fixture
def pictures(tmp_path):
    """A folder of ImageNet's form with 2 classes of 20 pictures to train on and 5 to evaluate."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 20), ("val", 5)):
        for label in ("cat", "dog"):
            folder = tmp_path / "data" / split / label
            folder.mkdir(parents=True)
            for number in range(count):
                noise = rng.integers(0, 256, (20, 20, 3), dtype=np.uint8)
                Image.fromarray(noise).save(folder / f"{number}.jpg")
    return tmp_path / "data"


def folder_recipe(micro, pictures, *overrides):
    return micro(f"data.root={pictures}", "data.source=folder", "training.batch_size=8", *overrides)


def test_broken_pictures_are_quarantined_by_name(micro, pictures, tmp_path):
    whole = (pictures / "train" / "cat" / "3.jpg").read_bytes()
    (pictures / "train" / "cat" / "3.jpg").write_bytes(whole[: len(whole) // 2])
    (pictures / "train" / "dog" / "text.png").write_text("not a picture")
    (pictures / "val" / "dog" / "1.jpg").write_bytes(b"")
    recipe = folder_recipe(micro, pictures, "training.max_unreadable=0.1", "training.epochs=3")
    summary = train(recipe, tmp_path / "run")
    assert summary["quarantined"] == 3
    lines = [json.loads(line) for line in (tmp_path / "run" / "quarantine.jsonl").read_text().splitlines()]
    assert {(line["split"], line["name"]) for line in lines} == {
        ("train", "train/cat/3.jpg"),
        ("train", "train/dog/text.png"),
        ("val", "val/dog/1.jpg"),
    }
    assert all(line["error"] for line in lines)


def test_too_many_broken_pictures_stop_the_run(micro, pictures, tmp_path):
    for number in range(10):
        (pictures / "train" / "cat" / f"{number}.jpg").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"of 40 pictures of train cannot be read.*max_unreadable.*quarantine.jsonl"):
        train(folder_recipe(micro, pictures, "training.max_unreadable=0.1"), tmp_path / "run")


def test_a_folder_without_pictures_fails_before_anything_is_written(micro, tmp_path):
    (tmp_path / "empty" / "train").mkdir(parents=True)
    with pytest.raises(ValueError, match="no pictures in"):
        train(folder_recipe(micro, tmp_path / "empty"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kill", ["kill(os.getpid(), signal.SIGTERM)", "system('kill -TERM 0')"])
def test_a_sigterm_from_outside_saves(micro, tmp_path, kill):
    """The command as a scheduler stops it: in a process, or a group of readers too, of its own."""
    workers = 2 if "system" in kill else 0
    recipe = micro("training.epochs=10000", f"training.workers={workers}")
    (tmp_path / "recipe.yaml").write_text(recipe_text(recipe))
    script = f"""
        import os, signal
        from castling.cli import main, train
        shown = train.train
        def watched(recipe, folder, resume, watch):
            def stop(record):
                watch(record)
                if record.step == 3:
                    os.{kill}
            return shown(recipe, folder, resume, stop)
        train.train = watched
        raise SystemExit(main.main(["train", {str(tmp_path / "recipe.yaml")!r}, "--out", {str(tmp_path / "run")!r}]))
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=120,
        start_new_session=True,
    )
    assert result.returncode == 128 + 15, result.stderr
    assert f"go on with: castling train {tmp_path / 'run'}" in result.stderr
    assert load_last(tmp_path / "run" / "checkpoints").step == 4
    assert load_recipe(tmp_path / "run" / "config.yaml").training.epochs == 10000


def test_a_network_whose_outputs_are_not_finite_is_said_by_predict_and_evaluate(micro, tmp_path, capsys):
    train(micro("training.max_steps=1", "training.ema_decay=null"), tmp_path / "run")
    checkpoint = load_last(tmp_path / "run" / "checkpoints")
    for name, value in checkpoint.weights["model"].items():
        if name.endswith("head.weight"):
            value.fill_(float("inf"))
    save_checkpoint(tmp_path / "run" / "checkpoints", replace(checkpoint, step=2))
    Image.new("L", (8, 8), 99).save(tmp_path / "x.png")
    assert main(["predict", "--model", str(tmp_path / "run"), str(tmp_path / "x.png"), "--json"]) == 1
    (said,) = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert "not finite" in said["error"]
    assert main(["evaluate", str(tmp_path / "run"), "--json"]) == 2
    assert "not finite" in capsys.readouterr().err


def test_outputs_that_are_not_finite_send_a_run_back(micro, tmp_path, monkeypatch):
    evaluate, calls = loop.evaluate, []

    def not_finite_at_first(*args, **options):
        calls.append(evaluate(*args, **options))
        return replace(calls[-1], finite=len(calls) > 1)

    monkeypatch.setattr(loop, "evaluate", not_finite_at_first)
    assert train(micro("training.max_steps=2"), tmp_path / "run")["rollbacks"] == 1


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("away", ["data", "data/train/cat"])
def test_pictures_that_are_away_end_the_run_and_it_goes_on_bit_equal_when_they_are_back(
    micro, pictures, tmp_path, workers, away
):
    recipe = folder_recipe(micro, pictures, f"training.workers={workers}")
    train(recipe, tmp_path / "calm")

    def take_away(record):
        if record.step == 4 and (tmp_path / away).exists():
            (tmp_path / away).rename(tmp_path / "away")

    with pytest.raises(OSError, match=r"^the pictures cannot be read any more: .*No such file.*jpg'$"):
        train(recipe, tmp_path / "run", watch=take_away)
    with pytest.raises((OSError, ValueError), match=r"no folder|one only: dog"):
        train(recipe, tmp_path / "run", resume=True)
    (tmp_path / "away").rename(tmp_path / away)
    train(recipe, tmp_path / "run", resume=True)
    assert not (tmp_path / "run" / "quarantine.jsonl").exists()
    assert (tmp_path / "run" / "log.jsonl").read_bytes() == (tmp_path / "calm" / "log.jsonl").read_bytes()


def test_a_single_missing_picture_gives_way_to_the_next(micro, pictures, tmp_path):
    def remove(record):
        (pictures / "train" / "cat" / "3.jpg").unlink(missing_ok=True)

    recipe = folder_recipe(micro, pictures, "training.max_unreadable=0.1", "training.epochs=3")
    assert train(recipe, tmp_path / "run", watch=remove)["quarantined"] == 1


def test_a_picture_that_the_system_fails_to_read_once_is_read_again(micro, pictures, tmp_path, monkeypatch):
    read, failed = FolderSource.read, []

    def fail_once(self, index):
        if len(failed) < 5 and index not in failed:
            failed.append(index)
            raise OSError(errno.EIO, "Input/output error", str(pictures / self.name(index)))
        return read(self, index)

    monkeypatch.setattr(FolderSource, "read", fail_once)
    assert train(folder_recipe(micro, pictures), tmp_path / "run")["quarantined"] == 0
    assert len(failed) == 5


def test_data_of_another_size_is_not_gone_on_with(micro, pictures, tmp_path):
    train(folder_recipe(micro, pictures, "training.max_steps=1"), tmp_path / "run")
    (pictures / "train" / "cat" / "3.jpg").unlink()
    with pytest.raises(ValueError, match=r"was trained on 40 pictures and evaluated on 10; now there are 39 and 10"):
        train(folder_recipe(micro, pictures), tmp_path / "run", resume=True)


def test_a_run_that_is_further_than_its_recipe_goes_is_refused(micro, tmp_path):
    train(micro(), tmp_path / "run")
    with pytest.raises(ValueError, match=r"run is at step 6, and config\.yaml ends at step 4"):
        train(micro("training.max_steps=4"), tmp_path / "run", resume=True)


@pytest.mark.parametrize("end", ["start", "end"])
def test_a_threshold_that_no_attention_weight_has_is_refused_before_anything_is_written(micro, tmp_path, end):
    with pytest.raises(ValueError, match=r"threshold must lie in \[0, 1\], as attention weights do; got 2\.5"):
        train(micro(f"training.threshold.{end}=2.5"), tmp_path / "run")
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_a_run_whose_recipe_has_another_threshold_is_named(micro, tmp_path):
    train(micro("training.max_steps=1"), tmp_path / "run")
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace("start: 0.05", "start: 70.0"))
    with pytest.raises(ValueError, match=r"run: threshold must lie in \[0, 1\], as attention weights do; got"):
        open_model(tmp_path / "run")


@pytest.mark.parametrize("error", [ConnectionResetError(104, "Connection reset by peer"), EOFError()], ids=repr)
def test_a_reading_process_that_is_killed_while_it_sends_is_said(micro, tmp_path, monkeypatch, error):
    def cut_off(self):
        raise error

    monkeypatch.setattr("torch.utils.data.dataloader._MultiProcessingDataLoaderIter._get_data", cut_off)
    with pytest.raises(ChildProcessError, match="a reading process was killed, as systems do for want of memory"):
        train(micro("training.workers=1", "training.max_steps=1"), tmp_path / "run")
