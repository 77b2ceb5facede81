"""`castling demo`: from nothing to a castled model and a page that shows what happened, on embedded real data."""

from __future__ import annotations

import argparse
import shutil
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from castling.cli import HelpFormatter, report
from castling.cli.castle import castle_run, print_certificate
from castling.cli.train import train_with_progress
from castling.training import load_recipe


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb and its flags."""
    parser = verbs.add_parser(
        "demo",
        help="train, castle, certify and report, in some minutes",
        description="Train a micro softmax ViT and its Castling twin on scikit-learn's scanned digits, castle, "
        "certify, measure speed at growing resolution, and write a page about it.",
        epilog="Example: castling demo --out demo",
        formatter_class=HelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=Path("demo"), metavar="DIR", help="folder; an old demo in it goes")
    parser.add_argument("--epochs", type=int, metavar="N", help="epochs of each training (default: the recipe's)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of both trainings")
    parser.set_defaults(run=run)


def run(flags: argparse.Namespace) -> int:
    """Run the demo; the exit code is 1 if castling would cost too much."""
    console = Console()
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
        scores[folder] = (summary["castled"] or summary["model"])["top1"]
    console.rule("castling")
    certificate, _ = castle_run(castling)
    print_certificate(certificate, console)
    console.rule("measuring and writing the page")
    report_flags = argparse.Namespace(
        runs=[castling, softmax],
        out=flags.out,
        title="From nothing to a castled model",
        sizes=None,
        measure_again=False,
        no_speed=False,
    )
    report.run(report_flags)
    console.print(
        f"castled {100 * scores[castling]:.2f} %, softmax twin {100 * scores[softmax]:.2f} % of held-out digits; "
        f"the page: {flags.out / 'report.html'}",
        highlight=False,
        soft_wrap=True,
    )
    return int(certificate.verdict == "not yet")
