"""A run on shards is the run on what was packed into them, and goes on in the middle of one, bit by bit."""

import os
import signal

import pytest
from test_resume import assert_same_run

from castling.tasks.picture_sources import open_source
from castling.tasks.shards.writer import PackOptions, pack_sources
from castling.training import Interrupted, RunFolder, train
from castling.training.records import StepRecord


@pytest.fixture
def shards(few_digits, tmp_path):
    """The pictures of the recipe in shards of seven or so, in their order."""
    sources = {split: open_source("idx", split, few_digits) for split in ("train", "val")}
    found = pack_sources(sources, tmp_path / "shards", PackOptions(shard_size=20_000))
    assert len(found["train"].shards) > 10
    return tmp_path / "shards"


def test_a_run_on_shards_is_the_run_on_what_was_packed(micro, shards, tmp_path):
    train(micro(), tmp_path / "arrays")
    train(micro("data.source=shards", f"data.root={shards}"), tmp_path / "run")
    assert_same_run(tmp_path / "run", tmp_path / "arrays")


@pytest.mark.slow
def test_a_run_stopped_in_the_middle_of_a_shard_goes_on_bit_equal(micro, shards, tmp_path):
    recipe = micro("data.source=shards", f"data.root={shards}", "training.batch_size=8", "training.epochs=1")
    train(recipe, tmp_path / "calm")

    def stop(record):
        if isinstance(record, StepRecord) and record.step == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        train(recipe, tmp_path / "stopped", watch=stop)
    (shards / ".castling-train.safetensors").unlink()  # an index that is made anew changes nothing
    train(RunFolder(tmp_path / "stopped").recipe(), tmp_path / "stopped", resume=True)
    assert_same_run(tmp_path / "stopped", tmp_path / "calm")


def test_a_bad_picture_in_a_shard_is_quarantined_by_name(micro, shards, tmp_path):
    path = shards / "train-000003.tar"
    content = bytearray(path.read_bytes())
    place = content.find(b"\x89PNG")
    content[place : place + 4] = b"none"
    path.write_bytes(content)
    recipe = micro("data.source=shards", f"data.root={shards}", "training.max_unreadable=0.1")
    summary = train(recipe, tmp_path / "run")
    assert summary["quarantined"] == 1
    assert '"name": "train-000003.tar/' in (tmp_path / "run" / "quarantine.jsonl").read_text()
    recipe = micro("data.source=shards", f"data.root={shards}", "training.max_unreadable=0.001")
    with pytest.raises(ValueError, match="unreadable"):
        train(recipe, tmp_path / "strict")
