"""What a reader must not do while it reads: run programs, unpickle, write files, take much memory, or never end."""

import contextlib
import os
import signal
import sys

try:
    import resource
except ImportError:  # not on Windows
    resource = None

SECONDS = 30  # one input takes milliseconds; this is for those that would never end
MEMORY = 2 * 2**30  # bytes on top of what the process has
RUNS = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "subprocess.Popen", "pty.spawn")
UNPICKLES = ("pickle.find_class",)
REACHES = ("socket.connect", "urllib.Request", "webbrowser.open", "ctypes.dlopen")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class NotAllowed(BaseException):
    """Something that no file may lead to; no reader catches it."""


_watching = False


def _watch(event, arguments):
    if not _watching:
        return
    if event in (*RUNS, *UNPICKLES, *REACHES):
        raise NotAllowed(f"{event}{arguments!r:.200}")
    if event == "open" and "__pycache__" in str(arguments[0]):  # of a library that is imported now
        return
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES:
        raise NotAllowed(f"opens {arguments[0]!r} to write")


sys.addaudithook(_watch)


@contextlib.contextmanager
def guarded():
    """Watch what is read within.

    Raises:
        NotAllowed: for a program that is run, a name that is unpickled, a file that is written, or no end.
        MemoryError: where more memory is asked for.
    """
    global _watching
    with _limited_memory(), _limited_time():
        _watching = True
        try:
            yield
        finally:
            _watching = False


@contextlib.contextmanager
def _limited_time():
    if not hasattr(signal, "setitimer"):
        yield
        return

    def stop(number, frame):
        raise NotAllowed(f"no end within {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _limited_memory():
    if resource is None or not os.path.exists("/proc/self/statm"):
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        held = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
