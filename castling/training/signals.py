"""SIGTERM and Ctrl-C: the first asks a run to save and leave, a second Ctrl-C leaves at once."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any


class Interrupted(Exception):
    """A run was asked to stop and has saved its state.

    Args:
        folder: the folder of the run.
        step: the number of the step that was saved.
        signum: the signal.
    """

    def __init__(self, folder: Path, step: int, signum: int) -> None:
        super().__init__(f"interrupted; step {step} is saved in {folder}")
        self.folder, self.step, self.signum = folder, step, signum


class StopRequest:
    """Catches the signals while it is entered.

    Attributes:
        signum: the signal that came; 0 for none.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self) -> None:
        self.signum = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # no other may set handlers
            self._before = {signum: signal.signal(signum, self._note) for signum in self.SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self.signum and signum == signal.SIGINT:
            raise KeyboardInterrupt
        self.signum = signum
