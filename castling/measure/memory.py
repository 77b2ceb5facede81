"""Peak memory of one forward pass, each in a process of its own, and a forecast of it that computes nothing.

A process that has run other networks keeps some of their memory, and one started by a large process inherits the peak
of its parent in `ru_maxrss`. So a fresh process asks the kernel for the peak of its own pages, reset before the pass.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from castling.measure import heap
from castling.measure.shapes import shapes_only

MIB = 2**20
OUT_OF_MEMORY = ("not enough memory", "can't allocate memory", "out of memory", "MemoryError", "bad_alloc")
_STATUS, _CLEAR, _MEMINFO = Path("/proc/self/status"), Path("/proc/self/clear_refs"), Path("/proc/meminfo")


@dataclass(frozen=True)
class PeakMemory:
    """Memory of a process in MiB.

    Args:
        start: memory before the candidate was built: Python and torch.
        before: memory after it was built, before the pass.
        peak: the most during the pass.
    """

    start: float
    before: float
    peak: float

    @property
    def of_pass(self) -> float:
        """What the pass needed on top of the candidate."""
        return self.peak - self.before

    @property
    def of_candidate(self) -> float:
        """What candidate and pass needed together: weights, constants and activations."""
        return self.peak - self.start


def peak_memory(target: str, arguments: Mapping[str, Any] | None = None, threads: int | None = None) -> PeakMemory:
    """Build a candidate in a fresh process, run it once, and say how much memory that took.

    On a machine with a GPU that the candidate uses, the numbers are those of `torch.cuda.max_memory_allocated`.

    Args:
        target: a function as `module:function`. It builds the candidate and returns its pass, which takes no arguments.
        arguments: keywords for it; plain data, as they travel as JSON.
        threads: threads of torch; as many as here by default.

    Raises:
        ValueError: if `target` is not of this form.
        MemoryError: if the process was killed or an allocation failed.
        RuntimeError: for any other error of the process, with its message.

    Example:
        >>> memory = peak_memory("unittest.mock:Mock")  # builds an object that does nothing when it is called
        >>> 0 <= memory.of_pass < 10 < memory.start
        True
    """
    module, colon, function = target.partition(":")
    if not (module and colon and function):
        raise ValueError(f"target must be 'module:function'; got {target!r}")
    request = {
        "target": target,
        "arguments": dict(arguments or {}),
        "threads": threads or torch.get_num_threads(),
        "path": sys.path,
    }
    # Every large block goes back to the system when it is freed, so that none is counted twice or not at all.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", heap.SWITCH: "0"}
    # As a file and not as a module: the process imports what the candidate needs, and nothing else.
    command = [sys.executable, "-c", f"import runpy; runpy.run_path({__file__!r}, run_name='__main__')"]
    done = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, env=environment)
    if done.returncode == 0:
        return PeakMemory(**json.loads(done.stdout.splitlines()[-1]))
    last_line = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    if done.returncode == -signal.SIGKILL:
        raise MemoryError(f"{target}: the process was killed, as the system does when memory runs out")
    if any(sign in last_line for sign in OUT_OF_MEMORY):
        raise MemoryError(f"{target}: out of memory: {last_line}")
    raise RuntimeError(f"{target}: {last_line}")


def _answer() -> None:
    """The other end of `peak_memory`: reads a request, writes the memory."""
    request = json.load(sys.stdin)
    sys.path[:] = request["path"]
    torch.set_num_threads(request["threads"])
    module, _, function = request["target"].partition(":")
    build = getattr(importlib.import_module(module), function)
    start = _memory_now()
    run = build(**request["arguments"])
    before = _memory_now()
    _reset_peak()
    run()
    sys.stdout.write(f"\n{json.dumps(asdict(PeakMemory(start, before, _peak())))}\n")


def _memory_now() -> float:
    return torch.cuda.memory_allocated() / MIB if _on_gpu() else _status("VmRSS") if _STATUS.exists() else _peak()


def _peak() -> float:
    if _on_gpu():
        return torch.cuda.max_memory_allocated() / MIB
    if _STATUS.exists():
        return _status("VmHWM")
    import resource  # not on every system, and needed only where /proc is not

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / MIB if sys.platform == "darwin" else peak / 1024


def _reset_peak() -> None:
    if _on_gpu():
        torch.cuda.reset_peak_memory_stats()
    elif _CLEAR.exists():
        _CLEAR.write_text("5")


def _on_gpu() -> bool:
    return torch.cuda.is_initialized()


def _status(key: str) -> float:
    """A line of the kernel's report on this process, in MiB."""
    (line,) = (line for line in _STATUS.read_text().splitlines() if line.startswith(f"{key}:"))
    return int(line.split()[1]) / 1024


def available_memory() -> float:
    """MiB that a process can still take without pushing others out.

    Example:
        >>> available_memory() > 0
        True
    """
    if torch.cuda.is_available():
        return torch.cuda.mem_get_info()[0] / MIB
    if _MEMINFO.exists():
        (line,) = (line for line in _MEMINFO.read_text().splitlines() if line.startswith("MemAvailable:"))
        return int(line.split()[1]) / 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / MIB


class _LiveBytes(TorchDispatchMode):
    """Adds up the storages that are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._add(tensor.untyped_storage())
        return result

    def _add(self, storage: Any) -> None:
        if storage in self._seen:
            return
        num_bytes = storage.nbytes()
        self._seen.add(storage)
        self.now += num_bytes
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._drop, num_bytes)

    def _drop(self, num_bytes: int) -> None:
        self.now -= num_bytes


def forecast_memory(build: Callable[[], nn.Module], shape: Sequence[int]) -> float:
    """MiB that a model and a forward pass of it will hold at most, without computing anything or holding it.

    Buffers that an operator uses inside itself are not seen, so the truth is somewhat higher.

    Args:
        build: maker of the model; its weights are never made.
        shape: shape of the input.

    Example:
        >>> round(forecast_memory(lambda: nn.Linear(256, 512, bias=False), (1024, 256)), 3)  # 0.5 + 1 + 2
        3.5
    """
    with shapes_only():
        model = build().eval()
    # Fake tensors say that they are on the CPU, and so take the fused attention that meta tensors do not.
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), _LiveBytes() as live:
        model.to_empty(device="cpu")
        model(torch.empty(tuple(shape)))
    return live.peak / MIB


if __name__ == "__main__":
    _answer()
