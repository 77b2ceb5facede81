"""Candidates that the process of `peak_memory` builds."""

import os
import signal

import torch


def large_tensor(mebibytes, kept=0):
    """Holds `kept` MiB, and fills a tensor of so many more when it runs."""
    held = torch.ones(kept * 2**18)
    return lambda: torch.ones(mebibytes * 2**18).sum() + held.sum()


def too_large_tensor():
    return lambda: torch.empty(2**60)


def killed():
    return lambda: os.kill(os.getpid(), signal.SIGKILL)


def failing():
    raise ValueError("this network\ncannot be built")
