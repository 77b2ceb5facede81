"""One process writes to a run folder: its lock, and locks that were left behind."""

import json
import os
import subprocess
import sys
import threading
from contextlib import nullcontext

import psutil
import pytest

from castling.training import RunFolder, lock, train
from castling.training.lock import LOCK, RunLock


def write_lock(folder, **changes):
    me = psutil.Process()
    holder = {"process": me.pid, "started": me.create_time(), "since": "yesterday", **lock.place()}
    folder.mkdir(exist_ok=True)
    (folder / LOCK).write_text(json.dumps(holder | changes))


@pytest.mark.parametrize("resume", [True, False])
def test_a_run_is_trained_by_one_process_at_a_time(micro, tmp_path, resume):
    recipe, refused = micro("training.max_steps=1"), []

    def second_start(record):
        if not refused:
            with pytest.raises(ValueError, match=f"is being trained by process {os.getpid()} on ") as error:
                train(recipe, tmp_path / "run", resume=resume)
            refused.append(error)

    train(recipe, tmp_path / "run", watch=second_start)
    assert refused
    assert not (tmp_path / "run" / LOCK).exists()
    assert [record.step for record in RunFolder(tmp_path / "run").steps()] == [0]


def test_a_failed_start_leaves_no_lock(micro, tmp_path):
    train(micro("training.max_steps=1"), tmp_path / "run")
    with pytest.raises(ValueError, match="holds a run already"):
        train(micro(), tmp_path / "run")
    assert not (tmp_path / "run" / LOCK).exists()


@pytest.mark.parametrize("what", ["dead", "another that got its number"])
def test_the_lock_of_a_dead_process_is_taken_over_with_a_word(tmp_path, caplog, what):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    write_lock(tmp_path, **({"process": ended.pid} if what == "dead" else {"started": 1.0}))
    with RunLock(tmp_path) as taken:
        taken.take()
        assert json.loads((tmp_path / LOCK).read_text())["process"] == os.getpid()
    assert f"{tmp_path} was left locked by process" in caplog.text


def test_the_lock_of_a_process_that_was_killed_and_not_waited_for_is_taken_over(tmp_path):
    killed = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
    started = psutil.Process(killed.pid).create_time()
    killed.kill()
    while psutil.Process(killed.pid).status() != psutil.STATUS_ZOMBIE:
        pass
    write_lock(tmp_path, process=killed.pid, started=started)
    with RunLock(tmp_path) as taken:
        taken.take()
    killed.wait()


@pytest.mark.parametrize("place", ["host", "process list"])
@pytest.mark.parametrize("alive", [True, False])
def test_the_beats_tell_whether_a_process_of_another_host_or_container_lives(tmp_path, monkeypatch, place, alive):
    monkeypatch.setattr(lock, "BEAT", 0.05)
    write_lock(tmp_path, **{place: "elsewhere"})
    stop = threading.Event()

    def beat():
        while not stop.wait(0.01):
            os.utime(tmp_path / LOCK)

    if alive:
        threading.Thread(target=beat).start()
    refused = pytest.raises(ValueError, match="since yesterday") if alive else nullcontext()
    with RunLock(tmp_path) as mine, refused:
        mine.take()
    stop.set()


def test_a_holder_beats(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "BEAT", 0.01)
    with RunLock(tmp_path) as mine:
        mine.take()
        os.utime(tmp_path / LOCK, (0, 0))
        while (tmp_path / LOCK).stat().st_mtime == 0:
            pass


def test_a_run_that_was_taken_over_is_left_alone(micro, tmp_path):
    def lose(record):
        write_lock(tmp_path / "run", host="elsewhere")

    with pytest.raises(ValueError, match=r"was taken over by process .* on elsewhere"):
        train(micro(), tmp_path / "run", watch=lose)
    assert (tmp_path / "run" / LOCK).exists()


def test_a_run_that_was_taken_over_and_finished_by_another_is_left_alone(micro, tmp_path):
    """As by a process that was asleep meanwhile: the lock is gone, and the next line of the log would be too much."""

    def lose(record):
        (tmp_path / "run" / LOCK).unlink(missing_ok=True)

    with pytest.raises(ValueError, match="was taken over by an unknown process"):
        train(micro(), tmp_path / "run", watch=lose)
    assert [record.step for record in RunFolder(tmp_path / "run").steps()] == [0]


def test_a_lock_that_is_given_back_while_one_waits_is_free(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "BEAT", 0.2)
    write_lock(tmp_path, host="elsewhere")
    threading.Timer(0.1, (tmp_path / LOCK).unlink).start()
    with RunLock(tmp_path) as mine:
        mine.take()
        mine.check()
