"""`castling predict`: labels with probabilities for pictures."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress

from castling.cli import HelpFormatter
from castling.tasks.classification.predict import Prediction, Predictor
from castling.training.saved import open_model


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb and its flags."""
    parser = verbs.add_parser(
        "predict",
        help="label pictures with a trained model",
        description="Print the likeliest classes of pictures. A folder stands for all pictures in it.",
        epilog="Example: castling predict photo.jpg more/ --model runs/imagenette/castled --json",
        formatter_class=HelpFormatter,
    )
    parser.add_argument("pictures", nargs="+", metavar="IMAGE", help="picture or folder of pictures")
    parser.add_argument("--model", type=Path, required=True, metavar="RUN", help="run folder, or its castled folder")
    parser.add_argument("--checkpoint", choices=("last", "best"), default="last", help="which weights of a run")
    parser.add_argument("--top", type=int, default=5, metavar="N", help="classes to name")
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="pictures at a time")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(flags: argparse.Namespace) -> int:
    """Print predictions; the exit code is 1 if a picture could not be read."""
    saved = open_model(flags.model, flags.checkpoint)
    saved.model.to("cuda" if torch.cuda.is_available() else "cpu")
    predictor = Predictor(saved.model, saved.recipe.settings.data, saved.labels)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("Predicting", total=None)
        found = predictor(
            flags.pictures, flags.top, flags.batch_size, on_batch=lambda done: progress.advance(bar, done)
        )
    if flags.json:
        print(json.dumps([asdict(prediction) for prediction in found]))
    else:
        for prediction in found:
            print(_line(prediction))
    return int(any(prediction.error is not None for prediction in found))


def _line(prediction: Prediction) -> str:
    if prediction.error is not None:
        return f"{prediction.name}: unreadable: {prediction.error}"
    pairs = zip(prediction.labels, prediction.probabilities, strict=True)
    return f"{prediction.name}: " + ", ".join(f"{label} {100 * probability:.1f} %" for label, probability in pairs)
