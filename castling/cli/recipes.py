"""`castling recipes`: list, show and copy the shipped recipes."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from rich import get_console
from rich.table import Table

from castling.cli import add_speech, say, say_json
from castling.recipes import describe_recipe, find_recipe, recipe_names
from castling.settings import read_yaml


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb and its flags."""
    parser = verbs.add_parser(
        "recipes",
        help="list, show and copy training recipes",
        description="Without arguments list the shipped recipes; with a name show that one, or copy it to a file.",
        epilog="Example: castling recipes digits/castling --copy mine.yaml",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="recipe to show or copy")
    parser.add_argument("--copy", type=Path, metavar="FILE", help="write it there; an existing file is not replaced")
    add_speech(parser, "what each recipe is, or the values of one")
    parser.set_defaults(run=run)


def run(flags: argparse.Namespace) -> None:
    """List, show or copy."""
    if flags.name is None:
        if flags.copy:
            raise ValueError("--copy needs the name of a recipe")
        table = Table("recipe", "what it is")
        found = {name: describe_recipe(name) for name in recipe_names()}
        for row in found.items():
            table.add_row(*row)
        console = get_console()
        console.width = max(console.width, 110)  # names are never cut
        console.print(table)
        say_json(flags, found)
        return
    text = find_recipe(flags.name).read_text()
    if flags.copy is None:
        if flags.json:
            say_json(flags, read_yaml(text, flags.name))
        else:
            print(text, end="")
        return
    if flags.copy.exists():
        raise ValueError(f"{flags.copy} is there already and is not replaced")
    flags.copy.parent.mkdir(parents=True, exist_ok=True)
    flags.copy.write_text(text)
    say(f"wrote {flags.copy}; train it with: castling train {shlex.quote(str(flags.copy))}")
