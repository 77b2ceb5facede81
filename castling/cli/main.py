"""A verb's way: imports its module alone, reads its flags, runs it, and says errors in one line."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.logging import RichHandler

from castling.training import Interrupted, TrainingFailed
from castling_command import find_verb, make_parser


def _log_handler() -> RichHandler:
    return RichHandler(console=Console(stderr=True), show_path=False)


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
    flags, rest = parser.parse_known_args(arguments)
    if rest and not (hasattr(flags, "overrides") and all("=" in word and word[0] != "-" for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        flags.overrides += rest  # settings behind a flag, which argparse does not give to a list
    try:
        return flags.run(flags) or 0
    except (ValueError, OSError, ImportError) as error:
        print(f"castling: {error}", file=sys.stderr)
        return 2
    except TrainingFailed as error:
        print(f"castling: {error}", file=sys.stderr)
        return 3
    except Interrupted as interrupted:
        print(f"castling: {interrupted}; go on with: castling train {interrupted.folder}", file=sys.stderr)
        return 128 + interrupted.signum
    except KeyboardInterrupt:
        print("castling: interrupted", file=sys.stderr)
        return 130
