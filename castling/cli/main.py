"""The door of the `castling` command: finds the verb, reads its flags, says errors in one line."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.logging import RichHandler

from castling import __version__
from castling.cli import (
    bench,
    castle,
    convert,
    demo,
    evaluate,
    export,
    figures,
    models,
    paper,
    plan,
    predict,
    recipes,
    report,
    train,
)
from castling.training import Interrupted, TrainingFailed

VERBS = (demo, recipes, train, castle, convert, evaluate, predict, plan, export, report, models, bench, paper, figures)


def _log_handler() -> RichHandler:
    return RichHandler(console=Console(stderr=True), show_path=False)


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
        The exit code: 0; 1 where a command ran and says no; 2 for input that cannot be used; 3 for training that
        failed; 128 and the signal's number for a run that was interrupted and saved.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[_log_handler()])
    parser = make_parser()
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
