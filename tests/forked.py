"""Processes for tests that start with everything imported: torch alone takes seconds."""

import multiprocessing
import os
import socket
import sys

import torch

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["castling.cli.main", "castling.training", "castling.report", "sklearn.datasets"])


def start(function, *arguments):
    """Begin a process that calls a function of a module; it computes with one thread."""
    process = PROCESSES.Process(target=_call, args=(function, arguments, sys.path))
    process.start()
    return process


def run_in_two(*arguments):
    """Run a command in two processes that know each other as under torchrun; returns both exit codes."""
    return call_in_two(run_command, [str(argument) for argument in arguments])


def call_in_two(function, *arguments):
    """Call a function of a module in two processes that know each other as under torchrun; returns both exit codes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    both = [start(call_as_one_of_two, rank, port, function, arguments) for rank in range(2)]
    for process in both:
        process.join(300)
    return [process.exitcode for process in both]


def _call(function, arguments, path):
    sys.path[:] = path
    torch.set_num_threads(1)
    function(*arguments)


def call_as_one_of_two(rank, port, function, arguments):
    """Call a function in this process as one of two."""
    shared = {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    own = {"RANK": rank, "LOCAL_RANK": rank}
    os.environ.update({name: str(value) for name, value in (shared | own).items()})
    function(*arguments)


def run_command(arguments):
    """Run a command in this process, and leave with its exit code."""
    from castling.cli.main import main

    raise SystemExit(main(arguments))
