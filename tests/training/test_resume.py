"""A run that was stopped, however rudely, ends as one that was not."""

import os
import random
import shutil
import signal
import time

import pytest
from forked import start

from castling.training import Interrupted, RunFolder, load_recipe, train
from castling.training.checkpoint import checkpoint_folders, load_last
from castling.training.recipe import recipe_text
from castling.training.records import StepRecord
from castling.training.saved import open_model


def files_of_last_checkpoint(folder):
    last = checkpoint_folders(folder / "checkpoints")[-1]
    return {path.name: path.read_bytes() for path in last.iterdir()}


def assert_same_run(folder, other):
    assert (folder / "log.jsonl").read_bytes() == (other / "log.jsonl").read_bytes()
    ours, theirs = files_of_last_checkpoint(folder), files_of_last_checkpoint(other)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if ours[name] != theirs[name]] == []


def train_or_go_on(recipe_file, folder):
    """What a person types again and again; runs in a process that is killed."""
    if RunFolder(folder).is_run():
        train(RunFolder(folder).recipe(), folder, resume=True)
    else:
        train(load_recipe(recipe_file), folder)


@pytest.mark.slow
def test_ten_kills_at_random_points_change_nothing(any_micro, tmp_path):
    often = ("training.epochs=30", "training.checkpoint_every=2", "training.accumulate=2", "training.evaluate_every=3")
    recipe = any_micro(*often)
    recipe_file = tmp_path / "recipe.yaml"
    recipe_file.write_text(recipe_text(recipe))

    def num_lines():
        log = tmp_path / "killed" / "log.jsonl"
        return log.read_bytes().count(b"\n") if log.is_file() else 0

    rng, places = random.Random(0), []
    for _ in range(10):
        target = num_lines() + rng.randint(-1, 5)  # of the log; one that is there already hits the start of the process
        process = start(train_or_go_on, recipe_file, tmp_path / "killed")
        while process.is_alive() and num_lines() < target:
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.03))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        places.append(num_lines())
    assert len(set(places)) > 4  # the kills hit different places
    for folder in ("killed", "calm"):
        process = start(train_or_go_on, recipe_file, tmp_path / folder)
        process.join()
        assert process.exitcode == 0
    assert_same_run(tmp_path / "killed", tmp_path / "calm")


@pytest.mark.slow
@pytest.mark.parametrize("stop_at", [2, 3, 4], ids=["within an epoch", "at its end", "in the next"])
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_the_run_goes_on_bit_equal(micro, tmp_path, stop_at, signum):
    recipe = micro("training.log_every=2", "training.workers=1" if stop_at == 2 else "training.workers=0")
    assert_a_signal_changes_nothing(recipe, tmp_path, stop_at, signum)


@pytest.mark.slow
def test_sigterm_saves_and_the_run_goes_on_bit_equal_whatever_the_task(any_micro, tmp_path):
    assert_a_signal_changes_nothing(any_micro("training.max_steps=4"), tmp_path, 3, signal.SIGTERM)


def assert_a_signal_changes_nothing(recipe, tmp_path, stop_at, signum):
    train(recipe, tmp_path / "calm")

    def stop(record):
        if isinstance(record, StepRecord) and record.step + 1 == stop_at:
            os.kill(os.getpid(), signum)

    handler = signal.getsignal(signum)
    with pytest.raises(Interrupted) as error:
        train(recipe, tmp_path / "stopped", watch=stop)
    assert (error.value.step, error.value.signum) == (stop_at, signum)
    assert signal.getsignal(signum) is handler
    assert load_last(tmp_path / "stopped" / "checkpoints").step == stop_at
    train(RunFolder(tmp_path / "stopped").recipe(), tmp_path / "stopped", resume=True)
    assert_same_run(tmp_path / "stopped", tmp_path / "calm")


def test_a_second_ctrl_c_leaves_at_once(micro, tmp_path):
    def impatient(record):
        if isinstance(record, StepRecord):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(micro(), tmp_path / "run", watch=impatient)


def test_a_finished_run_stays_as_it_is(micro, tmp_path):
    first = train(micro(), tmp_path / "run")
    files = files_of_last_checkpoint(tmp_path / "run")
    again = train(micro(), tmp_path / "run", resume=True)
    assert again["model"] == first["model"]
    assert files_of_last_checkpoint(tmp_path / "run") == files


def test_a_folder_with_a_run_is_not_trained_over(micro, tmp_path):
    train(micro("training.max_steps=1"), tmp_path / "run")
    with pytest.raises(ValueError, match="holds a run already"):
        train(micro(), tmp_path / "run")


@pytest.mark.parametrize("damage", ["truncate", "corrupt", "no manifest", "missing file"])
def test_a_damaged_checkpoint_is_passed_over_and_said(micro, tmp_path, caplog, damage):
    recipe = micro("training.checkpoint_every=2")
    train(recipe, tmp_path / "calm")
    train(recipe, tmp_path / "run")
    last = checkpoint_folders(tmp_path / "run" / "checkpoints")[-1]
    weights = last / "model.safetensors"
    content = weights.read_bytes()
    if damage == "truncate":
        weights.write_bytes(content[:-100])
    elif damage == "corrupt":
        weights.write_bytes(content[:-100] + bytes(100))
    elif damage == "no manifest":
        (last / "manifest.json").unlink()
    else:
        weights.unlink()
    assert load_last(tmp_path / "run" / "checkpoints").step < 6
    assert last.name in caplog.text
    assert "the one before it is used" in caplog.text
    train(recipe, tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", tmp_path / "calm")


def test_with_all_checkpoints_damaged_nothing_is_trained_or_forgotten(micro, tmp_path):
    train(micro(), tmp_path / "run")
    log = (tmp_path / "run" / "log.jsonl").read_bytes()
    for folder in checkpoint_folders(tmp_path / "run" / "checkpoints"):
        (folder / "model.safetensors").unlink()
    for use in (lambda: train(micro(), tmp_path / "run", resume=True), lambda: open_model(tmp_path / "run")):
        with pytest.raises(ValueError, match=r"no checkpoint of .*run is whole: .*model.safetensors.*remove .*anew"):
            use()
    assert (tmp_path / "run" / "log.jsonl").read_bytes() == log
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    assert train(micro(), tmp_path / "run", resume=True)["steps"] == 6


def test_a_run_whose_recipe_was_edited_is_not_gone_on_with(micro, tmp_path):
    train(micro("training.max_steps=1"), tmp_path / "run")
    with pytest.raises(ValueError, match=r"first that differs: blocks.1.*none in the weights"):
        train(micro("model.options.depth=2"), tmp_path / "run", resume=True)


def test_another_seed_gives_another_run(micro, tmp_path):
    train(micro("training.max_steps=2"), tmp_path / "a")
    train(micro("training.max_steps=2", "seed=1"), tmp_path / "b")
    assert (tmp_path / "a" / "log.jsonl").read_bytes() != (tmp_path / "b" / "log.jsonl").read_bytes()
