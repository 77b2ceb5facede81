"""`castling predict`: what a trained network sees in pictures."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.progress import Progress

import castling
from castling.cli import HelpFormatter, add_speech, error_console, say_json
from castling.settings import from_mapping, with_overrides
from castling.tasks.pictures import read_picture
from castling.tasks.task import Prediction
from castling.training.evaluation import best_device


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb and its flags."""
    parser = verbs.add_parser(
        "predict",
        help="let a trained model look at pictures",
        description="Print what a network sees in pictures. A folder stands for all pictures in it.",
        epilog="Example: castling predict photo.jpg more/ --model runs/imagenette/castled --set top=3 --draw drawn",
        formatter_class=HelpFormatter,
    )
    parser.add_argument("pictures", nargs="+", metavar="IMAGE", help="picture or folder of pictures")
    parser.add_argument(
        "--model", type=Path, required=True, metavar="RUN", help="run folder, its castled folder, or exported file"
    )
    parser.add_argument("--checkpoint", choices=("last", "best"), help="which weights of a run (default: last)")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="what the task lets one choose")
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="pictures at a time")
    parser.add_argument("--draw", type=Path, metavar="DIR", help="write the pictures with what was seen drawn in")
    add_speech(parser, "what was seen in each picture")
    parser.set_defaults(run=run)


def run(flags: argparse.Namespace) -> int:
    """Print predictions; the exit code is 1 if a picture could not be read."""
    saved = castling.open(flags.model, flags.checkpoint)
    options: Any = from_mapping(saved.task.PredictConfig, with_overrides({}, flags.set))
    predictor = saved.task.predictor(saved.network.to(best_device()), options)
    with Progress(console=error_console(), transient=True) as progress:
        bar = progress.add_task("Predicting", total=None)
        found = predictor(flags.pictures, flags.batch_size, on_batch=lambda done: progress.advance(bar, done))
    if flags.json:
        said = [prediction.to_json() for prediction in found]
        say_json(flags, [entry for part in said for entry in (part if isinstance(part, list) else [part])])
    elif not flags.quiet:
        for prediction in found:
            print(prediction.line())
    if flags.draw is not None:
        for number, prediction in enumerate(found):
            _draw(prediction, flags.draw, number)
    return int(any(prediction.error is not None for prediction in found))


def _draw(prediction: Prediction, folder: Path, number: int) -> None:
    """Write a drawn picture; numbers tell pictures of the same name apart."""
    if prediction.error is None:
        folder.mkdir(parents=True, exist_ok=True)
        path = Path(prediction.name)
        drawn = prediction.draw(read_picture(path))
        drawn = drawn if drawn.mode == "P" else drawn.convert("RGB")  # what has a palette is kept as it is
        drawn.save(folder / f"{number:04d}-{path.stem}.png")
