"""The door of the `castling` command: finds the verb, reads its flags, says errors in one line."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from rich.logging import RichHandler

from castling import __version__
from castling.cli import bench, figures, models, paper

VERBS = (bench, figures, models, paper)


def make_parser() -> argparse.ArgumentParser:
    """The parser of all verbs; each verb's file adds its own flags and a `run` function."""
    parser = argparse.ArgumentParser(
        prog="castling",
        description="Vision transformers that train with softmax attention and infer with linear-angular attention.",
        epilog="'castling VERB --help' shows a verb's flags and an example.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    for verb in VERBS:
        verb.add_parser(verbs)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: what follows `castling`; by default that of the process.

    Returns:
        The exit code: 0, or 2 for input that cannot be used.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[RichHandler(show_path=False)])
    flags = make_parser().parse_args(arguments)
    try:
        flags.run(flags)
    except (ValueError, OSError, ImportError) as error:
        print(f"castling: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("castling: interrupted", file=sys.stderr)
        return 130
    return 0
