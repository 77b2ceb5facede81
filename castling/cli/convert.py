"""`castling convert`: a trained softmax network becomes a castled one, for a part of its budget."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any, get_args

from rich import get_console

from castling.attention import KERNELS
from castling.cli import HelpFormatter, add_speech, say, say_json
from castling.cli.castle import certifying, print_certificate, say_allowed
from castling.cli.train import train_with_progress
from castling.config import AttentionConfig, LocalConv, OutputNorm
from castling.training.recipe import Recipe
from castling.workflows.convert_network import convert_network
from castling.workflows.linearize import STAGES, Linearization
from castling.workflows.originals import find_original

UNLABELLED_STAGES = STAGES[:2]


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb and its flags."""
    parser = verbs.add_parser(
        "convert",
        help="turn a trained softmax network into a castled one",
        description="Put castling attention into a trained network and train it over, in stages: each attention "
        "matches the original's, then the features of all blocks do, then the task is trained with the original as "
        "teacher. The first two need no labels, and a model of timm's or transformers' no more than a folder of "
        "pictures. Called again, it goes on where it stopped. At the end the original, the converted and the castled "
        "network are certified; where the loss is within the tolerance the castled one is written, otherwise the exit "
        "code is 1.",
        epilog="Example: castling convert vit_small_patch16_224 --weights vit.safetensors --data photos --out "
        "runs/castled; or of a run: castling convert runs/deit --out runs/castled --stages features finetune "
        "--epochs 1 2",
        formatter_class=HelpFormatter,
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="run folder, recipe, name of a model of timm's, or folder of transformers'")
    add("overrides", nargs="*", metavar="KEY=VALUE", help="settings that differ from the original's recipe")
    add("--out", type=Path, required=True, metavar="DIR", help="folder of the conversion")
    add("--weights", type=Path, metavar="FILE", help="the original's weights, of a name or a recipe")
    add("--data", metavar="DIR", help="folder of pictures, with labels or without (default: the run's)")
    add("--checkpoint", choices=("last", "best"), help="which weights of a run (default: last)")
    add("--stages", nargs="+", choices=STAGES, help="what to train, in this order (default: all that have labels)")
    add("--epochs", type=int, nargs="+", metavar="N", help="epochs of each stage (default: 1 each)")
    add("--learning-rate", type=float, metavar="X", help="peak learning rate (default: the original's)")
    add("--only", nargs="+", metavar="PATTERN", help="attentions to convert, as 'castling plan' says (default: all)")
    add("--kernel", choices=KERNELS, default=AttentionConfig().kernel, help="kernel of castling attention")
    add(
        "--local-conv",
        choices=get_args(LocalConv),
        default=AttentionConfig().local_conv,
        help="its filter: 9 taps along the tokens, 3 x 3 on their grid (for other picture sizes than those of "
        "training), or none",
    )
    add("--output-norm", choices=get_args(OutputNorm), default=AttentionConfig().output_norm, help="of its outputs")
    add("--rotary", action="store_true", help="turn q and k by their places on the grid")
    add("--aux", action="store_true", help="with the auxiliary branch, whose threshold closes in the last stage")
    add("--threshold", type=float, default=AttentionConfig().threshold, metavar="X", help="where it begins, for --aux")
    add("--teacher", choices=("self", "none"), default="self", help="whom finetune follows: the original or nobody")
    add(
        "--train-size",
        type=int,
        nargs="+",
        default=[],
        metavar="PX",
        help="picture size of the last stage: that of use; of several, one is drawn for each batch",
    )
    add("--sizes", type=int, nargs="+", default=[], metavar="PX", help="other picture sizes to measure at")
    add("--tolerance", type=float, default=0.5, metavar="X", help="largest loss: points of a percentage, or its unit")
    add_speech(parser, "the certificate")
    parser.set_defaults(run=run)


def run(flags: argparse.Namespace) -> int:
    """Train the stages, certify, and write the castled network where that is allowed."""
    console = get_console()
    original = find_original(flags.model, flags.weights, flags.checkpoint, flags.data)
    stages = tuple(flags.stages or (STAGES if original.labelled else UNLABELLED_STAGES))
    settings = Linearization(
        stages=stages,
        epochs=tuple(flags.epochs or [1] * len(stages)),
        rate=flags.learning_rate,
        only=None if flags.only is None else tuple(flags.only),
        attention=AttentionConfig(
            kernel=flags.kernel,
            aux=flags.aux,
            threshold=flags.threshold,
            output_norm=flags.output_norm,
            rotary=flags.rotary,
            local_conv=flags.local_conv,
            local_conv_size=3 if flags.local_conv == "grid" else AttentionConfig().local_conv_size,
        ),
        follow=flags.teacher == "self",
        train_sizes=tuple(flags.train_size),
    )
    overrides = [*flags.overrides, *([] if flags.data is None else [f"data.root={flags.data}"])]

    def train_stage(recipe: Recipe, folder: Path, resume: bool) -> Any:
        return train_with_progress(recipe, folder, resume, console, folder.name.capitalize())

    folder, certificate, castled = convert_network(
        original, flags.out, settings, train_stage, overrides, flags.tolerance, flags.sizes, certifying(console)
    )
    if certificate is None:
        return 0
    print_certificate(certificate, console)
    trained_at = flags.train_size or [original.recipe.settings.data.image_size]
    if flags.local_conv == "tokens" and set(flags.sizes) - {*trained_at}:
        say("The filter along the tokens learned the rows of one picture size: see --local-conv grid.")
    say_json(flags, certificate.to_json())
    code = say_allowed(folder, castled)
    if not code:
        say(f"next: castling export {shlex.quote(str(folder))}")
    return code
