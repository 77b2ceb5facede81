"""The command line: one file per verb. What they share: how help looks, and how they speak.

Words go to rich's console, which `--quiet` makes silent; with `--json` they go to the standard error, and JSON alone to
the standard output.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import rich
from rich.console import Console

from castling.measure.plain_json import json_text


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Help texts with their defaults, where there is one to speak of."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default in (None, False) else super()._get_help_string(action)


def add_speech(parser: argparse.ArgumentParser, content: str | None = None) -> None:
    """Give a verb `--quiet` and, where it has something to say in JSON, `--json`.

    Args:
        parser: the parser of the verb.
        content: what its JSON has; None where the verb has no such flag, or one of its own.
    """
    if content is not None:
        parser.add_argument("--json", action="store_true", help=f"print JSON: {content}")
    parser.add_argument("--quiet", action="store_true", help="no words, tables and bars: errors alone, and JSON")


def begin_speaking(flags: argparse.Namespace) -> None:
    """Set rich's console up as the flags say; of several processes the first one speaks."""
    quiet = flags.quiet or not _is_first()
    rich.reconfigure(quiet=quiet, stderr=getattr(flags, "json", False) in (True, "-"), highlight=False)


def error_console() -> Console:
    """A console for bars beside results that go to the standard output; silent where the other is."""
    return Console(stderr=True, quiet=rich.get_console().quiet)


def say(*lines: str) -> None:
    """Print lines as they are, however long."""
    for line in lines:
        rich.get_console().print(line, highlight=False, markup=False, soft_wrap=True)


def say_written(paths: Iterable[Path | str]) -> None:
    """Print what was written."""
    say(*(f"wrote {path}" for path in paths))


def say_json(flags: argparse.Namespace, content: Any) -> None:
    """Print JSON where it was asked for."""
    if flags.json and _is_first():
        print(json_text(content, indent=2))


def _is_first() -> bool:
    """Whether this is the process that speaks, of those that torchrun started."""
    return os.environ.get("RANK", "0") == "0"
