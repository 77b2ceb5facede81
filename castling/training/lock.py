"""The lock of a run folder: one process writes to it. It names that process, its host and since when.

A lock that a dead process left is taken over. Where both are in one list of processes, that list tells whether it is
dead; of a process of another host or container only the beats tell, which change the time of the file as long as it
lives: a file that keeps its time for `BEAT * BEATS_TO_MISS` seconds is that of a dead process.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

logger = logging.getLogger(__name__)
LOCK = "lock.json"
BEAT = 5.0  # seconds
BEATS_TO_MISS = 3
CLOCK_DRIFT = 5.0  # seconds: the start of a process is counted from the clock, which may be set


class RunLock:
    """A lock that its holder gives back on leaving.

    Args:
        folder: the folder of the run.

    Attributes:
        holder: what the file says of this process, once it has taken the lock.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, RunLock(folder) as lock:
        ...     lock.take()
        ...     sorted(json.loads((Path(folder) / LOCK).read_text()))
        ['host', 'process', 'process list', 'since', 'started']
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder, self.path = Path(folder), Path(folder) / LOCK
        self.holder: dict[str, Any] | None = None
        self._given_back = threading.Event()

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *error: object) -> None:
        self._given_back.set()
        if self.holder is not None and read_holder(self.folder) in (self.holder, {}):
            with suppress(OSError):  # a disk that is away: the lock of a dead process is taken over
                self.path.unlink()

    def take(self) -> None:
        """Take the lock, from a dead process if need be.

        Raises:
            ValueError: if a living process has it; names it.
            OSError: if the folder cannot be written to.
        """
        me = psutil.Process()
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        mine = {"process": me.pid, "started": me.create_time(), "since": now, **place()}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                file = self.path.open("x")
            except FileExistsError:
                holder = read_holder(self.folder)
                if _lives(holder, self.path):
                    raise ValueError(f"{self.folder} is being trained by {_described(holder)}") from None
                logger.warning("%s was left locked by %s, which is gone", self.folder, _described(holder))
                file = self.path.open("w")
            self.holder = mine
            with file:
                file.write(json.dumps(mine))
        except OSError as error:
            raise OSError(f"cannot write to the run folder {self.folder}: {error}") from error
        threading.Thread(target=self._beat, daemon=True).start()

    def check(self) -> None:
        """Make sure that no other process took the lock while this one seemed dead, nor gave it back since.

        Raises:
            ValueError: if one did; names it.
            OSError: if the folder is not there any more.
        """
        if self.holder is None or read_holder(self.folder) == self.holder:
            return
        if not self.folder.is_dir():
            raise OSError(f"the run folder {self.folder} is not there any more")
        raise ValueError(
            f"{self.folder} was taken over by {_described(read_holder(self.folder))}: this process leaves it alone"
        )

    def _beat(self) -> None:
        while not self._given_back.wait(BEAT):
            try:
                os.utime(self.path)
            except OSError:  # a disk that is away for a while
                continue


def read_holder(folder: Path) -> dict[str, Any]:
    """Who holds the lock of a folder; empty where its file cannot be read, as in the moment in which it is written."""
    try:
        content = json.loads((folder / LOCK).read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def place() -> dict[str, str]:
    """The host, and which list of processes: a container has its own, under a host name that others may have too."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return {"host": socket.gethostname(), "process list": f"{boot} {os.readlink('/proc/self/ns/pid')}"}
    except OSError:  # not Linux
        return {"host": socket.gethostname(), "process list": "the only one"}


def _lives(holder: dict[str, Any], path: Path) -> bool:
    if {name: holder.get(name) for name in place()} == place():
        try:
            process = psutil.Process(holder["process"])
            same = abs(process.create_time() - holder["started"]) < CLOCK_DRIFT
            return same and process.status() != psutil.STATUS_ZOMBIE  # killed, and its parent did not look yet
        except (psutil.NoSuchProcess, KeyError, TypeError, ValueError):
            return False
    logger.info("waiting for a sign of life of %s", _described(holder))
    before = _last_beat(path)
    time.sleep(BEAT * BEATS_TO_MISS)
    return _last_beat(path) not in (before, None)


def _last_beat(path: Path) -> int | None:
    """When the file changed last; None if it is gone, as its holder is then."""
    with suppress(FileNotFoundError), path.open("rb") as file:  # opening asks a shared disk anew
        return os.fstat(file.fileno()).st_mtime_ns
    return None


def _described(holder: dict[str, Any]) -> str:
    if not holder:
        return "an unknown process"
    return f"process {holder.get('process')} on {holder.get('host')}, since {holder.get('since')}"
