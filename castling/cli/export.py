"""`castling export`: a castled model as a file for an engine, verified against PyTorch."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from timm.models import load_state_dict
from torch import Tensor, nn

import castling.models  # noqa: F401 - registers castling_*
from castling.attention import branches
from castling.cli import HelpFormatter
from castling.config import check_choice
from castling.conversion import castle
from castling.export import FORMATS, ExportFailed, QuantizationCard, Verification, export, quantize
from castling.export.metadata import Metadata, describe_network
from castling.measure.metric import Metric
from castling.training.recipe import Recipe
from castling.training.run_folder import write_file
from castling.training.saved import open_model

NUM_CALIBRATION = 300  # pictures from which 8 bits learn their ranges


@dataclass(frozen=True)
class Subject:
    """What is exported.

    Args:
        model: in evaluation mode.
        example: an input of the size that it is made for.
        metadata: how to use it.
        out: where the file goes by default, without its ending.
        recipe: of its run, where there is one.
    """

    model: nn.Module
    example: Tensor
    metadata: Metadata
    out: Path
    recipe: Recipe | None = None


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb and its flags."""
    parser = verbs.add_parser(
        "export",
        help="write a castled model as a file for ONNX Runtime, OpenVINO or torch",
        description="Write a model as a file, and compare it with PyTorch at several sizes. A file that differs is "
        "removed, and the exit code is 1.",
        epilog="Example: castling export runs/digits --format openvino --int8",
        formatter_class=HelpFormatter,
    )
    add = parser.add_argument
    add("model", metavar="MODEL_OR_RUN", help="run folder, its castled folder, or the name of a model")
    add("--format", choices=FORMATS, default="onnx", help="kind of file")
    add("--out", type=Path, metavar="FILE", help="file to write (default: in the run, or here, by the model's name)")
    add("--size", type=parse_size, metavar="HxW", help="image size that it is made for (default: the model's)")
    add("--batch", type=int, default=1, metavar="N", help="images at a time that it is made for")
    add("--static", action="store_true", help="fix batch, height and width")
    add("--with-branch", action="store_true", help="write a model that was not castled")
    add("--int8", action="store_true", help="write a file in 8 bits as well (a run, format openvino)")
    add("--max-drop", type=float, default=0.5, metavar="POINTS", help="accuracy that 8 bits may lose")
    add("--tolerance", type=float, default=1e-4, metavar="X", help="largest difference to PyTorch's outputs")
    add("--weights", type=Path, metavar="FILE", help="weights of a named model (default: random)")
    add("--checkpoint", choices=("last", "best"), default="last", help="which weights of a run")
    add("--data", metavar="DIR", help="another place of the run's data, for --int8")
    parser.set_defaults(run=run)


def run(flags: argparse.Namespace) -> int:
    """Export, print what was verified, and quantise where asked to."""
    console = Console()
    if flags.batch < 1:
        raise ValueError(f"batch must be at least 1; got {flags.batch}")
    subject = find_subject(flags)
    if flags.int8 and (flags.format != "openvino" or subject.recipe is None):
        raise ValueError(
            "--int8 needs --format openvino, and a run whose pictures it can be calibrated and measured on"
        )
    suffix = FORMATS[flags.format].suffixes[0]
    out = flags.out or subject.out.with_name(subject.out.name + suffix)
    if out.suffix != suffix:
        raise ValueError(f"a file of format {flags.format} ends in {suffix}; got {out}")
    try:
        with console.status(f"Exporting to {out}, and comparing with PyTorch"):
            seen = export(
                subject.model,
                out,
                subject.example,
                dynamic=not flags.static,
                metadata=subject.metadata,
                with_branch=flags.with_branch,
                tolerance=flags.tolerance,
            )
        print_verification(seen, console)
        if flags.int8:
            print_card(quantize_run(subject, seen, flags.data, flags.max_drop, console), console)
    except ExportFailed as error:
        print(f"castling: {error}", file=sys.stderr)
        return 1
    return 0


def find_subject(flags: argparse.Namespace) -> Subject:
    """Open the run, or make the model of this name.

    Raises:
        ValueError: if there is neither, a run was not castled, or weights do not fit.
    """
    folder = Path(flags.model)
    if not folder.exists():
        if "/" in flags.model:
            raise ValueError(f"there is no run folder {flags.model}")
        return _named(flags.model, flags)
    castled = folder / "castled"
    if castled.is_dir() and not flags.with_branch:
        folder = castled
    saved = open_model(folder, flags.checkpoint)
    if branches(saved.model) and not flags.with_branch:
        raise ValueError(f"{folder} is not castled; run first: castling castle {folder}, or use --with-branch")
    if flags.weights is not None:
        raise ValueError("--weights is for a named model; a run has its own")
    data = saved.recipe.settings.data
    example = torch.zeros(flags.batch, data.channels, *(flags.size or (data.image_size, data.image_size)))
    preprocessing = {name: getattr(data, name) for name in ("mean", "std", "interpolation", "crop_share")}
    metadata = describe_network(saved.model, example, preprocessing=preprocessing, facts={"labels": list(saved.labels)})
    return Subject(saved.model, example, metadata, folder / "model", saved.recipe)


def _named(name: str, flags: argparse.Namespace) -> Subject:
    """A model of timm's registry; ours are castled, which changes none of their weights."""
    if not timm.is_model(name):
        check_choice("model or run folder", name, timm.list_models("castling_*") + timm.list_models(name[:4] + "*"))
    options: dict[str, Any] = {} if flags.size is None or name.startswith("castling_") else {"img_size": flags.size}
    weights = None if flags.weights is None else _weights(flags.weights)
    model = timm.create_model(name, **options)
    if weights is not None:
        classifier = model.pretrained_cfg.get("classifier")
        head = weights.get(f"{classifier}.bias")
        model = model if head is None else timm.create_model(name, num_classes=len(head), **options)
        try:
            model.load_state_dict(weights)
        except RuntimeError as error:
            raise ValueError(f"{flags.weights} does not fit {name}: {error}") from error
    if branches(model) and not flags.with_branch:
        model = castle(model, inplace=True)
    channels, *sides = model.pretrained_cfg["input_size"]
    example = torch.zeros(flags.batch, channels, *(flags.size or sides))
    return Subject(model.eval(), example, describe_network(model, example), Path(name))


def _weights(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    try:
        return load_state_dict(str(path), device="cpu", weights_only=True)
    except Exception as error:  # each format of weights raises its own
        raise ValueError(f"{path} holds no weights: {error}") from error


def quantize_run(
    subject: Subject, seen: Verification, data: str | None, max_drop: float, console: Console
) -> QuantizationCard:
    """Quantise what was exported: training pictures calibrate it, validation pictures measure it."""
    assert subject.recipe is not None
    if "batch" not in seen.dynamic and len(subject.example) > 1:
        raise ValueError("--int8 measures with any number of pictures: leave --static or --batch out")
    task = subject.recipe.make_task(data)
    batch_size = 32 if "batch" in seen.dynamic else 1
    image_size = tuple(subject.example.shape[-2:])

    def pictures(split: str, what: str) -> Iterator[Any]:
        loader = task.build_loader(split, batch_size)
        for batch in track(loader, what, total=len(loader.batch_sampler), console=console, transient=True):
            if tuple(batch["image"].shape[-2:]) != image_size:
                raise ValueError(f"--int8 uses the run's pictures as they are: leave --size {image_size} out")
            yield batch

    calibration: list[Tensor] = []
    for batch in pictures("train", "Reading pictures to calibrate"):
        calibration += batch["image"][batch["target"] >= 0].split(1)
        if len(calibration) >= NUM_CALIBRATION:
            break

    def validate(network: Any) -> Metric:
        value = float(task.evaluate(network, pictures("val", "Measuring"))[task.primary_metric])
        return Metric(task.primary_metric, value)

    out = seen.path.with_name(f"{seen.path.stem}_int8.xml")
    card = quantize(seen.path, out, subject.model, calibration[:NUM_CALIBRATION], validate, max_drop)
    write_file(out.with_suffix(".json"), json.dumps(card.to_json(), indent=2).encode())
    return card


def print_verification(seen: Verification, console: Console) -> None:
    """Print what was compared and found."""
    n = "" if seen.num_tokens is None else f" (N = {seen.num_tokens:,})"
    quadratic = f"not looked for: {seen.obstacle}" if seen.quadratic is None else str(len(seen.quadratic) or "none") + n
    common = ", ".join(f"{count} {name}" for name, count in list(seen.operators.items())[:5])
    rows = {
        "largest difference to PyTorch": f"{seen.largest_difference:.2g} (tolerance {seen.tolerance:g})",
        "compared at": ", ".join("x".join(map(str, shape)) for shape in seen.shapes),
        "free axes": ", ".join(seen.dynamic) or "none",
        "softmax operators": str(seen.num_softmax or "none"),
        "N x N tensors": quadratic,
        "operators": f"{seen.num_operators}, {100 * seen.native_share:.0f} % native; {common}",
    }
    _print_table("verified", rows, console)
    console.print(f"wrote {seen.path}", highlight=False, soft_wrap=True)


def print_card(card: QuantizationCard, console: Console) -> None:
    """Print what 8 bits cost and gave."""
    names = ", ".join(card.kept_in_float[:4])
    rows = {
        card.metric_before.name: f"{card.metric_before.shown} to {card.metric_after.shown}: {card.lost:.2f} "
        f"{card.metric_before.difference_unit} lost ({card.max_loss:g} allowed)",
        "size": f"{card.bytes_before / 1e6:.2f} MB to {card.bytes_after / 1e6:.2f} MB",
        "median time of one image": f"{card.milliseconds_before:.2f} ms to {card.milliseconds_after:.2f} ms",
        "layers kept in float": f"{len(card.kept_in_float)} of {card.num_layers}" + (f": {names}" if names else ""),
    }
    _print_table("in 8 bits", rows, console)
    for path in (card.path, card.path.with_suffix(".json")):
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)


def _print_table(title: str, rows: dict[str, str], console: Console) -> None:
    table = Table(title=title, show_header=False)
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table)


def parse_size(text: str) -> tuple[int, int]:
    """Height and width of `224` or `224x320`.

    Raises:
        argparse.ArgumentTypeError: for anything else.

    Example:
        >>> parse_size("224"), parse_size("224x320")
        ((224, 224), (224, 320))
    """
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(side.isdigit() and int(side) > 0 for side in sides):
        raise argparse.ArgumentTypeError(f"expected HxW in pixels, such as 224x320; got {text!r}")
    return int(sides[0]), int(sides[-1])
