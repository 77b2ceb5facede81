"""The front of the `castling` command: help, version and misspelt verbs are answered here, without torch.

It stands outside the package because `import castling` registers models with timm, and so loads torch.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import importlib.metadata
import re
from collections.abc import Sequence
from typing import NoReturn

VERBS = {
    "demo": "train, castle, certify and report, in some minutes",
    "recipes": "list, show and copy training recipes",
    "data": "check pictures and annotations; pack them into shards",
    "train": "train a recipe, or go on with a run",
    "castle": "drop the softmax branch, with a certificate",
    "convert": "turn a trained softmax network into a castled one",
    "evaluate": "measure a trained model on its data",
    "predict": "let a trained model look at pictures",
    "explain": "show what a trained model attends to in a picture, and what decided",
    "play": "show runs in the browser: what they say, cost and attend to",
    "plan": "find out which attentions of a network are worth castling here",
    "export": "write a castled model as a file for ONNX Runtime, OpenVINO or torch",
    "publish": "write a run as a folder that transformers and timm load",
    "report": "write a run as an HTML page with figures",
    "models": "list models with parameters and MACs",
    "study": "train variants of a recipe with several seeds, and compare them",
    "bench": "measure speed and cost",
    "paper": "compare parameters and MACs with the paper's tables",
    "figures": "draw the paper's explanatory figures",
    "completion": "print what lets a shell complete verbs and flags",
}


class Parser(argparse.ArgumentParser):
    """A parser that names the nearest verb of one that there is not."""

    def error(self, message: str) -> NoReturn:
        """Leave with what is wrong."""
        unknown = re.match(r"argument VERB: invalid choice: '(.*?)'", message)
        if unknown is not None:
            near = difflib.get_close_matches(unknown[1], VERBS, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(VERBS)}"
            message = f"no verb {unknown[1]!r}: {hint}"
        super().error(message)


def make_parser(*called: str) -> argparse.ArgumentParser:
    """The parser of all verbs, in which only those that are called have flags.

    Args:
        *called: the verbs whose modules are imported and add their flags; without any nothing is imported.
    """
    parser = Parser(
        prog="castling",
        description="Vision transformers that train with softmax attention and infer with linear-angular attention.",
        epilog="'castling VERB --help' shows a verb's flags and an example.",
    )
    parser.add_argument("--version", action="version", version=importlib.metadata.version("castling-vit"))
    verbs = parser.add_subparsers(
        title="verbs", dest="verb", metavar="VERB", required=True, parser_class=argparse.ArgumentParser
    )
    for name, line in VERBS.items():
        if name in called:
            importlib.import_module(f"castling.cli.{name}").add_parser(verbs)
        else:
            verbs.add_parser(name, help=line, add_help=False)  # its help is the module's to show
    return parser


def find_verb(arguments: Sequence[str] | None = None) -> str:
    """The verb that is called; help, version and a verb that is none leave with SystemExit.

    Args:
        arguments: what follows `castling`; by default that of the process.

    Example:
        >>> find_verb(["train", "digits/castling", "--out", "runs/digits"])
        'train'
    """
    return make_parser().parse_known_args(arguments)[0].verb


def main() -> int:
    """Answer by itself what needs no verb, and leave the rest to `castling.cli.main`."""
    find_verb()
    from castling.cli.main import main as call  # loads torch

    return call()
