"""Memory that the process keeps: the C library gives large blocks back to the system as soon as they are freed.

A network at 1024 px then fetches tens of thousands of fresh pages from the system in every pass, which takes longer
than many of its layers.
"""

from __future__ import annotations

import ctypes
import os
import sys

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's malloc.h
NEVER = 2**31 - 1
SWITCH = "CASTLING_KEEP_HEAP"


def keep_heap() -> bool:
    """Let this process keep freed memory for its next pass: time for memory.

    What is kept is the most that was ever needed at once. Whatever makes a network ready for inference does this
    (`optimize`, `on_engine`, predictors, the command line); CASTLING_KEEP_HEAP=0 in the environment refuses it.

    Returns:
        Whether it is kept: the C library can be told so (glibc, on Linux), and nobody refused.

    Example:
        >>> keep_heap() == sys.platform.startswith("linux")
        True
    """
    if not sys.platform.startswith("linux") or os.environ.get(SWITCH, "1") == "0":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries for Linux may not have it
    return mallopt is not None and bool(mallopt(M_TRIM_THRESHOLD, NEVER) and mallopt(M_MMAP_MAX, 0))
