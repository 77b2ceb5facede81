"""`castling recipes`: list, show and copy the shipped recipes."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from rich.console import Console
from rich.table import Table

from castling.recipes import describe_recipe, find_recipe, recipe_names


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
    parser.set_defaults(run=run)


def run(flags: argparse.Namespace) -> None:
    """List, show or copy."""
    if flags.name is None:
        if flags.copy:
            raise ValueError("--copy needs the name of a recipe")
        table = Table("recipe", "what it is")
        for name in recipe_names():
            table.add_row(name, describe_recipe(name))
        console = Console()
        console.width = max(console.width, 110)  # names are never cut
        console.print(table)
        return
    text = find_recipe(flags.name).read_text()
    if flags.copy is None:
        print(text, end="")
        return
    if flags.copy.exists():
        raise ValueError(f"{flags.copy} is there already and is not replaced")
    flags.copy.parent.mkdir(parents=True, exist_ok=True)
    flags.copy.write_text(text)
    print(f"wrote {flags.copy}; train it with: castling train {shlex.quote(str(flags.copy))}")
