"""A verb's way: imports its module alone, reads its flags, runs it, and says errors in one line."""

from __future__ import annotations

import logging
import re
import shlex
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.logging import RichHandler

from castling.cli import begin_speaking
from castling.training import Interrupted, TrainingFailed
from castling_command import find_verb, make_parser

TAKE_SETTINGS = ("train", "convert")  # verbs with KEY=VALUE anywhere behind them


def _log_handler() -> RichHandler:
    return RichHandler(console=Console(stderr=True), show_path=False)


def _without_settings(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of a command, and its settings, which argparse would give to a list of values before them."""
    if not arguments or arguments[0] not in TAKE_SETTINGS:
        return list(arguments), []
    before = ["", *arguments]
    is_setting = [
        re.match(r"[A-Za-z_][\w.]*=", word) is not None and not before[place].startswith("--")
        for place, word in enumerate(arguments)
    ]
    pairs = list(zip(arguments, is_setting, strict=True))
    return [word for word, setting in pairs if not setting], [word for word, setting in pairs if setting]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: what follows `castling`; by default that of the process.

    Returns:
        The exit code: 0; 1 where a command ran and says no; 2 for input that cannot be used; 3 for training that
        failed; 128 and the signal's number for a run that was interrupted and saved.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[_log_handler()])
    parser = make_parser(find_verb(arguments))
    words, settings = _without_settings(sys.argv[1:] if arguments is None else arguments)
    flags = parser.parse_args(words)
    if settings:
        flags.overrides += settings
    begin_speaking(flags)
    try:
        return flags.run(flags) or 0
    except (ValueError, OSError, ImportError) as error:
        print(f"castling: {error}", file=sys.stderr)
        return 2
    except TrainingFailed as error:
        print(f"castling: {error}", file=sys.stderr)
        return 3
    except Interrupted as interrupted:
        print(
            f"castling: {interrupted}; go on with: castling train {shlex.quote(str(interrupted.folder))}",
            file=sys.stderr,
        )
        return 128 + interrupted.signum
    except KeyboardInterrupt:
        print("castling: interrupted", file=sys.stderr)
        return 130
