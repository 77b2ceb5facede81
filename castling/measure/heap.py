"""Memory that the process keeps: the C library gives large blocks back to the system as soon as they are freed.

A network at 1024 px then fetches tens of thousands of fresh pages from the system in every pass, which takes longer
than many of its layers.
"""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's malloc.h
NEVER = 2**31 - 1


def keep_heap() -> bool:
    """Let this process keep freed memory for its next pass.

    For servers and benchmarks that run the same network again and again: time for memory. What is kept is the most
    that was ever needed at once. Environment variables do the same without code: `MALLOC_TRIM_THRESHOLD_=2000000000
    MALLOC_MMAP_THRESHOLD_=2000000000`.

    Returns:
        Whether the C library is one that can be told so (glibc, on Linux).

    Example:
        >>> keep_heap() == sys.platform.startswith("linux")
        True
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries for Linux may not have it
    return mallopt is not None and bool(mallopt(M_TRIM_THRESHOLD, NEVER) and mallopt(M_MMAP_MAX, 0))
