"""Where a number was measured: hardware, versions, commit. Every result that is kept names them."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import torch


def describe_environment() -> dict[str, str]:
    """Hardware, versions, commit and date as plain strings.

    Example:
        >>> sorted(describe_environment())
        ['castling', 'commit', 'date', 'processor', 'python', 'threads', 'timm', 'torch']
    """
    return {
        "castling": version("castling-vit"),
        "commit": _commit(),
        "date": datetime.date.today().isoformat(),
        "processor": torch.cuda.get_device_name() if torch.cuda.is_available() else _cpu_name(),
        "python": platform.python_version(),
        "threads": str(torch.get_num_threads()),
        "timm": version("timm"),
        "torch": torch.__version__,
    }


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    instructions = torch.backends.cpu.get_cpu_capability()  # one name may be of several processors
    return f"{name} x{os.cpu_count()} {instructions}"


def _commit() -> str:
    """The commit of this checkout, with a mark where files differ from it; `unknown` for an installed package."""
    try:
        command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
        result = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return result.stdout.strip()
