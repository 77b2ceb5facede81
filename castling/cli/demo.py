"""`castling demo`: from nothing to a castled model and a page that shows what happened, on embedded real data."""

from __future__ import annotations

import argparse
import shutil
from dataclasses import replace
from pathlib import Path

from rich import get_console

from castling.cli import HelpFormatter, add_speech, say, say_json
from castling.cli.castle import certifying, print_certificate
from castling.cli.report import with_speed
from castling.cli.train import train_with_progress
from castling.conversion import Certificate
from castling.measure.metric import Metric, with_values
from castling.report.run_data import read_run
from castling.report.run_page import write_report
from castling.training import load_recipe
from castling.workflows.castle_run import castle_run

PROMISED = 0.97  # of the deciding metric, castled
BEHIND_TWIN = 0.5  # points that the castled network may be behind its softmax twin


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb and its flags."""
    parser = verbs.add_parser(
        "demo",
        help="train, castle, certify and report, in some minutes",
        description="Train a micro softmax ViT and its Castling twin on scikit-learn's scanned digits, castle, "
        "certify, measure speed at growing resolution, and write a page about it. The exit code is 1 if the castled "
        f"network does not reach {PROMISED:.0%}, falls more than {BEHIND_TWIN} points behind its twin, or loses by "
        "castling.",
        epilog="Example: castling demo --out demo",
        formatter_class=HelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=Path("demo"), metavar="DIR", help="folder; an old demo in it goes")
    parser.add_argument("--epochs", type=int, metavar="N", help="epochs of each training (default: the recipe's)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of both trainings")
    add_speech(parser, "what was reached, the verdict, and promises that were broken")
    parser.set_defaults(run=run)


def run(flags: argparse.Namespace) -> int:
    """Run the demo; the exit code is 1 if a promise is broken."""
    console = get_console()
    softmax, castling = flags.out / "softmax", flags.out / "castling"
    for folder in (softmax, castling):
        if folder.exists():
            if not (folder / "config.yaml").is_file():
                raise ValueError(f"{folder} is there and no run of the demo; name another folder with --out")
            shutil.rmtree(folder)
    scores = {}
    for folder, recipe_name in ((softmax, "digits/softmax"), (castling, "digits/castling")):
        recipe = replace(load_recipe(recipe_name), seed=flags.seed)
        if flags.epochs is not None:
            recipe = replace(recipe, training=replace(recipe.training, epochs=flags.epochs))
        console.rule(f"training {recipe_name}")
        summary = train_with_progress(recipe, folder, console=console)
        scores[folder] = with_values(summary["metrics"], summary["castled"] or summary["model"])[0]
    console.rule("castling")
    certificate, _ = castle_run(castling, track=certifying(console))
    print_certificate(certificate, console)
    console.rule("measuring and writing the page")
    runs = [with_speed(read_run(castling), console), read_run(softmax)]
    page, *_ = write_report(runs, flags.out, "From nothing to a castled model")
    broken = broken_promises(scores[castling], scores[softmax], certificate)
    lines = [f"castled {scores[castling].shown}, softmax twin {scores[softmax].shown} of held-out digits", *broken]
    say(*lines, f"the page: {page}")
    reached = {"castled": scores[castling].value, "twin": scores[softmax].value}
    say_json(flags, {**reached, "verdict": certificate.verdict, "broken": broken, "page": str(page)})
    return int(bool(broken))


def broken_promises(castled: Metric, twin: Metric, certificate: Certificate) -> list[str]:
    """What the demo promises and did not keep, a sentence each.

    Example:
        >>> from types import SimpleNamespace
        >>> broken_promises(Metric("right", 0.98), Metric("right", 0.99), SimpleNamespace(allowed=True, lost=0.0))
        ['promised at most 0.5 points behind the softmax twin, and is 1.00 behind']
    """
    behind = twin.lost_by(castled)
    broken = []
    if castled.value < PROMISED:
        broken.append(f"promised {PROMISED:.0%} castled, and reached {castled.shown}")
    if behind > BEHIND_TWIN:
        broken.append(f"promised at most {BEHIND_TWIN} points behind the softmax twin, and is {behind:.2f} behind")
    if not certificate.allowed:
        broken.append(f"promised that castling costs nothing, and it costs {certificate.lost:.2f} points")
    return broken
