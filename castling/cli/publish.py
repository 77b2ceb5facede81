"""`castling publish`: a run as a folder that transformers and timm load, with a card; sent to Hugging Face if asked."""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from castling.cli import HelpFormatter, add_speech, say, say_json, say_written
from castling.workflows.publishing import Published, publish, upload

HUB = "hf://"


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb and its flags."""
    parser = verbs.add_parser(
        "publish",
        help="write a run as a folder that transformers and timm load",
        description="Write the weights of a run, castled where it was, with a configuration that transformers loads "
        "after 'import castling', and timm too for a classifier, and a card made of certificate and recipe.",
        epilog="Example: castling publish runs/digits --to published/digits; or, asked for once more: castling publish "
        "runs/digits --to hf://you/digits",
        formatter_class=HelpFormatter,
    )
    add = parser.add_argument
    add("run_folder", type=Path, metavar="RUN", help="run folder, or its castled folder")
    add("--to", required=True, metavar="DIR|hf://OWNER/NAME", help="folder to write, or repository to upload to")
    add("--license", default="apache-2.0", metavar="NAME", help="licence of the weights, as Hugging Face names it")
    add("--checkpoint", choices=("last", "best"), help="which weights of a run (default: the castled ones, else last)")
    add("--with-branch", action="store_true", help="publish a network that was not castled")
    add("--yes", action="store_true", help="upload without being asked once more")
    add_speech(parser, "what was written")
    parser.set_defaults(run=run)


def run(flags: argparse.Namespace) -> int:
    """Write the folder; the exit code is 1 where an upload was not agreed to."""
    options = (flags.license, flags.checkpoint, flags.with_branch)
    if not flags.to.startswith(HUB):
        found = publish(flags.run_folder, flags.to, *options)
        _say(found)
        say_json(flags, {**asdict(found), "folder": str(found.folder)})
        return 0
    repository = flags.to.removeprefix(HUB)
    owner, slash, name = repository.partition("/")
    if not (owner and slash and name) or "/" in name:
        raise ValueError(f"a repository is {HUB}OWNER/NAME; got {flags.to}")
    with tempfile.TemporaryDirectory() as place:
        found = publish(flags.run_folder, Path(place) / name, *options)
        _say(found)
        if not (flags.yes or _agreed(f"Upload {found.num_bytes / 1e6:.1f} MB to {repository}?")):
            say("nothing was uploaded")
            return 1
        address = upload(found.folder, repository)
    say(f"uploaded to {address}")
    say_json(flags, {**asdict(found), "folder": None, "address": address})
    return 0


def _say(found: Published) -> None:
    say_written(found.folder / name for name in found.files)
    loads = f"transformers loads it as {found.architecture}, after 'import castling'"
    say(loads + (f"; timm as local-dir:{found.folder}" if found.timm else ""))


def _agreed(question: str) -> bool:
    """Whether a person at a terminal says yes; nobody else can."""
    if not sys.stdin.isatty():
        raise ValueError("nobody can be asked here: --yes says that the upload is wanted")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
