"""The lock of a run folder: one process writes to it. It names that process, its host and since when.

A lock that a dead process left is taken over. On the same host the process list tells whether it is dead; of another
host's process only the beats tell, which change the time of the file as long as it lives.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import socket
import threading
import time
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

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, RunLock(folder) as lock:
        ...     lock.take()
        ...     sorted(json.loads((Path(folder) / LOCK).read_text()))
        ['host', 'process', 'since', 'started']
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder, self.path = Path(folder), Path(folder) / LOCK
        self._mine: dict[str, Any] | None = None
        self._given_back = threading.Event()

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *error: object) -> None:
        self._given_back.set()
        if self._mine is not None and _read(self.path) in (self._mine, {}):
            self.path.unlink(missing_ok=True)

    def take(self) -> None:
        """Take the lock, from a dead process if need be.

        Raises:
            ValueError: if a living process has it; names it.
            OSError: if the folder cannot be written to.
        """
        me = psutil.Process()
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        mine = {"process": me.pid, "host": socket.gethostname(), "started": me.create_time(), "since": now}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                file = self.path.open("x")
            except FileExistsError:
                holder = _read(self.path)
                if _lives(holder, self.path):
                    raise ValueError(f"{self.folder} is being trained by {_described(holder)}") from None
                logger.warning("%s was left locked by %s, which is gone", self.folder, _described(holder))
                file = self.path.open("w")
            self._mine = mine
            with file:
                file.write(json.dumps(mine))
        except OSError as error:
            raise OSError(f"cannot write to the run folder {self.folder}: {error}") from error
        threading.Thread(target=self._beat, daemon=True).start()

    def check(self) -> None:
        """Make sure that no other process took the lock while this one seemed dead.

        Raises:
            ValueError: if one did; names it.
        """
        holder = _read(self.path)
        if self._mine is not None and holder not in (self._mine, {}):
            raise ValueError(f"{self.folder} was taken over by {_described(holder)}: this process leaves it alone")

    def _beat(self) -> None:
        while not self._given_back.wait(BEAT):
            try:
                os.utime(self.path)
            except OSError:  # a disk that is away for a while
                continue


def _read(path: Path) -> dict[str, Any]:
    """The holder; empty where the file cannot be read, as in the moment in which it is written."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _lives(holder: dict[str, Any], path: Path) -> bool:
    if holder.get("host") == socket.gethostname():
        try:
            return abs(psutil.Process(holder["process"]).create_time() - holder["started"]) < CLOCK_DRIFT
        except (psutil.NoSuchProcess, KeyError, TypeError, ValueError):
            return False
    logger.info("waiting for a sign of life of %s", _described(holder))
    before = _last_beat(path)
    time.sleep(BEAT * BEATS_TO_MISS)
    return _last_beat(path) != before


def _last_beat(path: Path) -> int:
    with path.open("rb") as file:  # opening asks a shared disk anew
        return os.fstat(file.fileno()).st_mtime_ns


def _described(holder: dict[str, Any]) -> str:
    if not holder:
        return "an unknown process"
    return f"process {holder.get('process')} on {holder.get('host')}, since {holder.get('since')}"
