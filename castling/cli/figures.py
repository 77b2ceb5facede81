"""`castling figures`: the paper's explanatory figures."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich import get_console
from rich.progress import Progress

from castling.cli import HelpFormatter, add_speech, say_json, say_written
from castling.report.fitting import draw_fitting, fit_angular_similarity
from castling.report.kernel_figures import draw_expansion, draw_feature_space


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb and its flags."""
    parser = verbs.add_parser(
        "figures",
        help="draw the paper's explanatory figures",
        description="Draw the angular kernel, its feature space, and a network that learns it.",
        epilog="Example: castling figures --out figures",
        formatter_class=HelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=Path("figures"), metavar="DIR", help="folder, made where needed")
    parser.add_argument("--steps", type=int, default=10_000, metavar="N", help="training steps of the network")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the points and of the network")
    add_speech(parser, "the files, and the last error of the fitted network")
    parser.set_defaults(run=run)


def run(flags: argparse.Namespace) -> None:
    """Write angular_kernel.png, feature_space.png and fitting.png."""
    written = [
        draw_expansion(flags.out / "angular_kernel.png"),
        draw_feature_space(flags.out / "feature_space.png", flags.seed),
    ]
    with Progress(console=get_console()) as progress:
        task = progress.add_task("Fitting the angular similarity", total=flags.steps)
        fitting = fit_angular_similarity(flags.steps, flags.seed, on_step=lambda: progress.advance(task))
    written.append(draw_fitting(fitting, flags.out / "fitting.png"))
    say_written(written)
    say_json(flags, {"files": [str(path) for path in written], "loss": float(fitting.losses[-1])})
