import ctypes
import sys

import pytest

from castling.measure import heap


def test_glibc_is_told_to_keep_freed_memory(monkeypatch):
    told = []
    library = type("Library", (), {"mallopt": staticmethod(lambda *setting: told.append(setting) or 1)})
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(sys, "platform", "linux")
    assert heap.keep_heap()
    assert told == [(heap.M_TRIM_THRESHOLD, heap.NEVER), (heap.M_MMAP_MAX, 0)]


@pytest.mark.parametrize(("platform", "library"), [("darwin", None), ("linux", object())])
def test_other_systems_and_c_libraries_are_left_alone(monkeypatch, platform, library):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(sys, "platform", platform)
    assert not heap.keep_heap()


def test_it_can_be_refused(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", None)  # not asked for anything
    monkeypatch.setenv("CASTLING_KEEP_HEAP", "0")
    assert not heap.keep_heap()
