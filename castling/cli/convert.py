"""`castling convert`: a trained softmax network becomes a castled one, for a part of its budget."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any, get_args

from rich.console import Console
from rich.table import Table

from castling.attention import KERNELS
from castling.cli import HelpFormatter
from castling.cli.train import train_with_progress
from castling.config import AttentionConfig, LocalConv
from castling.training.linearize import ORIGINAL, STAGES, Linearization, compare, linearize, stage_recipes
from castling.training.recipe import Recipe, load_recipe
from castling.training.run_folder import RunFolder
from castling.training.saved import open_model, save_weights, write_castled


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb and its flags."""
    parser = verbs.add_parser(
        "convert",
        help="turn a trained softmax network into a castled one",
        description="Put castling attention into a trained network and train it over, in stages: each attention "
        "matches the original's, then the features of all blocks do, then the task is trained with the original as "
        "teacher. Called again, it goes on where it stopped. At the end the original, the converted and the castled "
        "network are compared, and the castled one is written.",
        epilog="Example: castling convert runs/deit --out runs/castled --stages features task --epochs 1 2",
        formatter_class=HelpFormatter,
    )
    add = parser.add_argument
    add("model", metavar="RUN_OR_RECIPE", help="folder of the original's run; or a recipe of it, with --weights")
    add("overrides", nargs="*", metavar="KEY=VALUE", help="settings that differ from the original's recipe")
    add("--out", type=Path, required=True, metavar="DIR", help="folder of the conversion")
    add("--weights", type=Path, metavar="FILE", help="the original's weights, where there is no run")
    add("--checkpoint", choices=("last", "best"), default="last", help="which weights of the run")
    add("--stages", nargs="+", choices=STAGES, default=list(STAGES), help="what to train, in this order")
    add("--epochs", type=int, nargs="+", metavar="N", help="epochs of each stage (default: 1 each)")
    add("--learning-rate", type=float, metavar="X", help="peak learning rate (default: the original's)")
    add(
        "--only",
        nargs="+",
        metavar="PATTERN",
        help="attentions to convert, such as 'castling plan' names (default: all)",
    )
    add("--kernel", choices=KERNELS, default=AttentionConfig().kernel, help="kernel of castling attention")
    add(
        "--local-conv",
        choices=get_args(LocalConv),
        default=AttentionConfig().local_conv,
        help="its filter: 9 taps along the tokens, 3 x 3 on their grid (for other picture sizes than those of "
        "training), or none",
    )
    add(
        "--teacher",
        choices=("self", "none"),
        default="self",
        help="whom the task stage follows: the original or nobody",
    )
    add("--data", metavar="DIR", help="another place of the pictures")
    add("--sizes", type=int, nargs="+", metavar="PX", help="picture sizes to compare at (default: that of training)")
    parser.set_defaults(run=run)


def run(flags: argparse.Namespace) -> None:
    """Train the stages, compare, and write the castled network."""
    console = Console()
    base, weights = _original(flags)
    settings = Linearization(
        stages=tuple(flags.stages),
        epochs=tuple(flags.epochs or [1] * len(flags.stages)),
        rate=flags.learning_rate,
        only=None if flags.only is None else tuple(flags.only),
        attention={
            "kernel": flags.kernel,
            "aux": False,
            "local_conv": flags.local_conv,
            "local_conv_size": 3 if flags.local_conv == "grid" else AttentionConfig().local_conv_size,
        },
        teacher=flags.teacher,
    )
    overrides = [*flags.overrides, *([] if flags.data is None else [f"data.root={flags.data}"])]
    recipes = stage_recipes(base, flags.out, settings, overrides)
    _check_same(recipes, flags.out)
    flags.out.mkdir(parents=True, exist_ok=True)
    weights(flags.out / ORIGINAL)

    def train_stage(recipe: Recipe, folder: Path, resume: bool) -> Any:
        return train_with_progress(recipe, folder, resume, console, recipe.settings.objective.capitalize())

    folder = linearize(recipes, flags.out, train_stage)
    saved = open_model(folder)
    with console.status("Comparing the original, the converted and the castled network"):
        certificate = compare(saved, flags.sizes or ())
    print_comparison(certificate, console)
    other_size = set(certificate["sizes"]) - {saved.recipe.settings.data.image_size}
    if other_size and flags.local_conv == "tokens":
        console.print("The filter along the tokens learned the rows of one picture size: see --local-conv grid.")
    castled = write_castled(folder, saved, certificate)
    console.print(f"wrote {castled}; next: castling export {folder}", highlight=False, soft_wrap=True)


def _original(flags: argparse.Namespace) -> tuple[Recipe, Any]:
    """The original's recipe, and a function that writes its weights into a file."""
    folder = Path(flags.model)
    if folder.is_dir():
        if flags.weights is not None:
            raise ValueError("--weights is for a recipe; a run has its own")
        saved = open_model(folder, flags.checkpoint)
        return saved.recipe, lambda path: save_weights(saved.model, path)
    if flags.weights is None:
        raise ValueError(f"there is no run folder {flags.model}; with a recipe, give the original's --weights")
    if not flags.weights.is_file():
        raise ValueError(f"there is no file {flags.weights}")
    return load_recipe(flags.model), lambda path: shutil.copyfile(flags.weights, path)


def _check_same(recipes: list[Recipe], out: Path) -> None:
    """Refuse to go on with a conversion that began with other settings."""
    for recipe in recipes:
        folder = RunFolder(out / recipe.settings.objective)
        if folder.is_run() and folder.recipe() != recipe:
            raise ValueError(f"{folder.path} was begun with other settings; name another --out, or call it as before")


def print_comparison(certificate: dict[str, Any], console: Console) -> None:
    """Print the three networks, a line for each size of the pictures."""
    table = Table("px", "network", title=f"{certificate['attentions']} attentions castled")
    sizes = certificate["sizes"]
    metrics = [name for name in next(iter(sizes.values()))["original"] if name != "loss"]
    for metric in metrics:
        table.add_column(metric, justify="right")
    for size, networks in sizes.items():
        for name, found in networks.items():
            table.add_row(str(size), name, *(f"{100 * found[metric]:.2f} %" for metric in metrics))
    console.print(table)
