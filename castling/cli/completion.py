"""`castling completion`: what lets bash, zsh or fish complete verbs, flags and their values."""

from __future__ import annotations

import argparse

from castling.cli import HelpFormatter, add_speech
from castling.extras import import_extra
from castling_command import VERBS, make_parser

SHELLS = ("bash", "zsh", "fish")


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb and its flags."""
    parser = verbs.add_parser(
        "completion",
        help="print what lets a shell complete verbs and flags",
        description="Print a script for a shell. bash: eval it in ~/.bashrc; zsh: write it to a folder of $fpath as "
        "_castling; fish: write it to ~/.config/fish/completions/castling.fish.",
        epilog="Example: castling completion bash > ~/.local/share/bash-completion/completions/castling",
        formatter_class=HelpFormatter,
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell")
    add_speech(parser)
    parser.set_defaults(run=run)


def run(flags: argparse.Namespace) -> None:
    """Print the script; it is static, so that completing does not load torch."""
    shtab = import_extra("shtab", "completion")
    print(shtab.complete(make_parser(*VERBS), flags.shell))
