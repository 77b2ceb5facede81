"""`castling explain`: what a trained network attends to in a picture, and what spoke for its outcome."""

from __future__ import annotations

import argparse
from pathlib import Path

import castling
from castling.cli import HelpFormatter, add_speech, say, say_json, say_written
from castling.training.saved import open_model


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb and its flags."""
    parser = verbs.add_parser(
        "explain",
        help="show what a trained model attends to in a picture, and what decided",
        description="Write where a place of a picture attends to in every attention, beside what softmax of the same "
        "queries and keys would attend to, and which places spoke for the outcome: as pictures and as arrays.",
        epilog="Example: castling explain photo.jpg --model runs/imagenette/castled --at 0.4 0.6 --out explained",
        formatter_class=HelpFormatter,
    )
    add = parser.add_argument
    add("picture", type=Path, metavar="IMAGE", help="a picture")
    add("--model", type=Path, required=True, metavar="RUN", help="run folder, or its castled folder")
    add("--checkpoint", choices=("last", "best"), help="which weights of a run (default: last)")
    place = ("X", "Y")
    add("--at", type=float, nargs=2, default=[0.5, 0.5], metavar=place, help="shares of width and height from top left")
    add("--layers", nargs="+", metavar="NAME", help="names of attentions (default: all)")
    add("--size", type=int, metavar="PX", help="another size to look at the picture in")
    add("--out", type=Path, default=Path("explained"), metavar="DIR", help="folder for pictures and arrays")
    add_speech(parser, "what the network says, and what was written")
    parser.set_defaults(run=run)


def run(flags: argparse.Namespace) -> None:
    """Explain one picture."""
    if flags.picture.is_dir():
        raise ValueError(f"{flags.picture} is a folder: explain takes one picture")
    saved = open_model(flags.model, flags.checkpoint)
    found = castling.explain(saved, flags.picture, flags.at, flags.layers, flags.size)
    files = found.save(flags.out)
    say(found.said)
    say_written(files)
    say_json(flags, {**found.to_json(), "files": [str(path) for path in files]})
