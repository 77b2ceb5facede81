"""What the processes of one run agree on before they begin: none is left waiting for another that could not start.

Without it, a process that lacks a file leaves with a sentence, and all others wait for it for half an hour.
"""

from __future__ import annotations

import shlex
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import broadcast, broadcast_object_list, gather_object
from torch import nn

from castling.training.lock import RunLock, read_holder

PATIENCE = 60.0  # seconds in which a shared disk shows what another host wrote
REFUSALS = (ValueError, OSError, ImportError)  # errors with a sentence for people
Result = TypeVar("Result")


def meet() -> PartialState:
    """Let the processes that torchrun started know each other; one process alone knows itself."""
    return PartialState(cpu=not torch.accelerator.is_available())


def from_first(act: Callable[[], Result]) -> Result:
    """What a function gives in the first process, in all of them.

    Args:
        act: called in the first process only.

    Raises:
        ValueError: in the others, if the first process raised one of `REFUSALS`, which it raises itself.

    Example:
        >>> from_first(lambda: 7)
        7
    """
    result: Any = None
    trouble: Exception | None = None
    if meet().is_main_process:
        try:
            result = act()
        except REFUSALS as error:
            trouble = error
    shared = [result, None if trouble is None else f"process 0 on {socket.gethostname()}: {trouble}"]
    broadcast_object_list(shared)
    if trouble is not None:
        raise trouble
    if shared[1] is not None:
        raise ValueError(shared[1])
    made: Result = shared[0]
    return made


def together(act: Callable[[], Result]) -> Result:
    """What a function gives in this process, once it has succeeded in all of them.

    Args:
        act: called in every process; must not wait for another.

    Raises:
        ValueError: if another process raised one of `REFUSALS`; names process and host, and repeats its sentence.

    Example:
        >>> together(lambda: 7)
        7
    """
    result: Any = None
    trouble: Exception | None = None
    try:
        result = act()
    except REFUSALS as error:
        trouble = error
    rank = meet().process_index
    said = gather_object([None if trouble is None else f"process {rank} on {socket.gethostname()}: {trouble}"])
    if trouble is not None:
        raise trouble
    for words in said:
        if words is not None:
            raise ValueError(words)
    made: Result = result
    return made


def agree(what: str, value: object) -> None:
    """Make sure that all processes have the same.

    Args:
        what: what it is, for the message.
        value: that of this process.

    Raises:
        ValueError: in all processes, if one has another value; says all of them.
    """
    values = gather_object([(value, socket.gethostname())])
    if any(other != value for other, _ in values):
        listed = "; ".join(f"{other} in process {rank} on {host}" for rank, (other, host) in enumerate(values))
        raise ValueError(f"the processes of a run must see the same {what}; got {listed}")


@torch.no_grad()
def share_buffers(network: nn.Module) -> None:
    """Give all processes the buffers of the first one, which are those that are saved.

    Running statistics of batch norms come from the pictures that a process sees: with its own, each would evaluate
    another network than the one that is kept.

    Args:
        network: without wrappers; the same network in all processes.
    """
    if meet().num_processes > 1:
        for buffer in network.buffers():
            buffer.copy_(broadcast(buffer.clone(memory_format=torch.contiguous_format)))


def check_shared(folder: Path, lock: RunLock) -> None:
    """Make sure that all processes see the folder in which the first one took its lock.

    Args:
        folder: the folder of the run.
        lock: its lock, taken in the first process.

    Raises:
        ValueError: in all processes, if one does not see it; names its host.
    """
    holder = from_first(lambda: lock.holder) or {}

    def look() -> None:
        waited_until = time.monotonic() + PATIENCE
        while read_holder(folder) != holder:
            if time.monotonic() > waited_until:
                raise ValueError(
                    f"{folder.absolute()} is not the folder that process {holder['process']} on {holder['host']} "
                    "writes to: all machines must see the run folder, by the same path, on a disk that they share"
                )
            time.sleep(0.5)

    together(look)


def explained(error: RuntimeError, folder: Path | str) -> OSError | None:
    """An error of torch as one for people, where it is that of a process that was killed; None for all others.

    Args:
        error: what was raised, wherever the run was at.
        folder: the folder of the run.

    Example:
        >>> explained(RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed."), "runs/mine")
        ChildProcessError('a reading process was killed, as systems do for want of memory (training.workers says how \
many there are). Go on from the last checkpoint with: castling train runs/mine')
    """
    how = f"Go on from the last checkpoint with: castling train {shlex.quote(str(folder))}"
    if "DataLoader worker" in str(error):
        return ChildProcessError(
            f"a reading process was killed, as systems do for want of memory (training.workers says how many there "
            f"are). {how}"
        )
    if isinstance(error, torch.distributed.DistError) or "gloo" in str(error):
        return ConnectionError(f"another process of the run has ended, or cannot be reached. {how}")
    return None
