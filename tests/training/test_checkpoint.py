"""Checkpoints by themselves: whole or known not to be, the last ones and the best."""

import contextlib
import json
import resource
import shutil

import pytest
import torch

from castling.training.checkpoint import (
    Checkpoint,
    checkpoint_folders,
    load_best,
    load_checkpoint,
    load_last,
    save_checkpoint,
)


@contextlib.contextmanager
def file_size_limit(size):
    """A quota that the system enforces on this process: writing past it is an OSError."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def checkpoint(step, value=0.0, score=None):
    tensors = {"weight": torch.full((1000,), value)}
    return Checkpoint(step, {"model": tensors}, {"lr": 0.1}, {"score": score, "note": "kept"})


def test_a_checkpoint_that_does_not_fit_leaves_the_others_whole(tmp_path):
    save_checkpoint(tmp_path, checkpoint(1))
    with file_size_limit(2000), pytest.raises(OSError, match="The last good checkpoint is step-000000001"):
        save_checkpoint(tmp_path, checkpoint(2))
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001"]
    assert load_last(tmp_path).step == 1


def test_what_is_saved_comes_back(tmp_path):
    folder = save_checkpoint(tmp_path, checkpoint(3, 0.5, score=0.25))
    found = load_checkpoint(folder)
    assert (found.step, found.optimizer, found.state) == (3, {"lr": 0.1}, {"score": 0.25, "note": "kept"})
    assert torch.equal(found.weights["model"]["weight"], torch.full((1000,), 0.5))
    assert set(json.loads((folder / "manifest.json").read_text())) == {
        "model.safetensors",
        "optimizer.pt",
        "state.json",
    }


def test_the_last_two_and_the_highest_score_stay(tmp_path):
    for step, score in enumerate([0.1, 0.9, None, 0.2, 0.3]):
        save_checkpoint(tmp_path, checkpoint(step, score=score))
    assert [folder.name[-1] for folder in checkpoint_folders(tmp_path)] == ["1", "3", "4"]
    assert (load_best(tmp_path).step, load_last(tmp_path).step) == (1, 4)


def test_of_equal_scores_the_later_is_the_best(tmp_path):
    for step in (1, 2):
        save_checkpoint(tmp_path, checkpoint(step, score=0.5))
    assert load_best(tmp_path).step == 2


def test_without_scores_the_best_is_the_last_and_of_none_there_is_none(tmp_path):
    assert load_best(tmp_path) is load_last(tmp_path) is None
    save_checkpoint(tmp_path, checkpoint(7))
    assert load_best(tmp_path).step == 7


def test_what_a_killed_process_left_is_removed(tmp_path):
    (tmp_path / ".step-000000009.part").mkdir()
    save_checkpoint(tmp_path, checkpoint(1))
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001"]


@pytest.mark.parametrize("file", ["state.json", "model.safetensors", "optimizer.pt"])
def test_a_damaged_file_is_named(tmp_path, file):
    folder = save_checkpoint(tmp_path, checkpoint(1))
    (folder / file).write_bytes(b"{}")
    with pytest.raises(ValueError, match=f"is damaged: {file} does not match its checksum"):
        load_checkpoint(folder)


def test_a_damaged_manifest_is_said(tmp_path):
    folder = save_checkpoint(tmp_path, checkpoint(1))
    (folder / "manifest.json").write_bytes(b"{")
    with pytest.raises(ValueError, match="is damaged"):
        load_checkpoint(folder)


def test_a_later_checkpoint_that_was_passed_over_does_not_count_as_one_to_go_back_to(tmp_path):
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, checkpoint(step))
    (tmp_path / "step-000000003" / "manifest.json").unlink()
    assert load_last(tmp_path).step == 2
    (tmp_path / "step-000000002").rename(tmp_path / "step-000000001")
    save_checkpoint(tmp_path, checkpoint(2))
    assert [folder.name[-1] for folder in checkpoint_folders(tmp_path)] == ["1", "2"]


def test_whoever_is_killed_while_a_checkpoint_is_replaced_leaves_no_half_of_one(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, checkpoint(0))
    rmtree, names = shutil.rmtree, []

    def killed(folder, **options):
        if folder.exists():
            names.append(folder.name)
            raise KeyboardInterrupt
        rmtree(folder, **options)

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, checkpoint(0))
    assert names[0].startswith(".")
    assert load_last(tmp_path) is None  # begun anew, rather than refused for a checkpoint that is not whole


def test_no_folder_is_made_where_the_disk_of_a_run_is_away(tmp_path):
    with pytest.raises(OSError, match=r"cannot save .*No such file or directory"):
        save_checkpoint(tmp_path / "run" / "checkpoints", checkpoint(1))
    assert not (tmp_path / "run").exists()
