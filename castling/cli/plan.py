"""`castling plan`: which attentions of a network to castle, by their times on this machine."""

from __future__ import annotations

import argparse

import timm
import torch
from rich import get_console
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor, nn

from castling.attention import KERNELS
from castling.bench.candidates import timm_model
from castling.bench.planner import SpeedPlan, plan_speed
from castling.bench.results_file import command_line
from castling.bench.subjects import build_subject, is_subject
from castling.cli import HelpFormatter, add_speech, error_console, say, say_json
from castling.cli.export import parse_size
from castling.config import AttentionConfig, check_choice
from castling.conversion import has_castling_attention
from castling.exporting.engines import ENGINES
from castling.measure.environment import describe_environment


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb and its flags."""
    parser = verbs.add_parser(
        "plan",
        help="find out which attentions of a network are worth castling here",
        description="Time the network in an engine with each kind of its attentions castled, castle those that save "
        "time, and time the network that this gives beside the original.",
        epilog="Example: castling plan vit_small_patch16_224 --size 512x768 --engine openvino; castling plan runs/x",
        formatter_class=HelpFormatter,
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="a model of timm's, of a family that 'castling.convert' knows; a run; a recipe")
    add("--size", type=parse_size, metavar="HxW", help="image size to plan for (default: the model's)")
    add("--engine", choices=ENGINES, default="eager", help="what will run it")
    add("--batch", type=int, default=1, metavar="N", help="images at a time")
    add("--threads", type=int, metavar="N", help="threads; torch's by default")
    add("--kernel", choices=KERNELS, default=AttentionConfig().kernel, help="kernel of castling attention")
    add("--only", nargs="+", metavar="PATTERN", help="attentions to think of, such as 'blocks.[0-3].*' (default: all)")
    add("--repeats", type=int, default=9, metavar="N", help="rounds in which candidates take turns")
    add_speech(parser, "the plan")
    parser.set_defaults(run=run)


def run(flags: argparse.Namespace) -> None:
    """Measure, and print layer by layer what to do."""
    if min(flags.batch, flags.repeats, flags.threads or 1) < 1:
        raise ValueError(
            f"batch, repeats and threads must be at least 1; got {flags.batch}, {flags.repeats} and {flags.threads}"
        )
    model, example = find_network(flags.model, flags.size, flags.batch)
    height, width = example.shape[-2:]
    config = AttentionConfig(kernel=flags.kernel)
    with Progress(console=error_console(), transient=True) as progress:
        task = progress.add_task("Measuring", total=None)
        found = plan_speed(
            model,
            example,
            flags.engine,
            flags.threads,
            config,
            flags.only,
            flags.repeats,
            lambda done, total: progress.update(task, completed=done, total=total),
        )
    title = f"{flags.model}, {flags.batch} x {height} x {width} px, {flags.engine}, "
    print_plan(found, model, title + f"{flags.threads or torch.get_num_threads()} threads", get_console())
    where = {"command": command_line(), "environment": describe_environment()}
    say_json(flags, {**found.to_json(), **where})


def find_network(name: str, size: tuple[int, int] | None, batch: int) -> tuple[nn.Module, Tensor]:
    """The network that is meant, and a batch of noise.

    Raises:
        ValueError: if there is no such network, or it is one of ours without a run.
    """
    if is_subject(name):
        model, example = build_subject(name, size)
        return model, torch.randn(batch, *example.shape[1:])
    if name.startswith("castling_"):
        raise ValueError(f"{name} has castling attention already; plan for {name[9:]!r}, another host, or a run")
    if not timm.is_model(name):
        check_choice("model", name, timm.list_models(name[:4] + "*") or timm.list_models())
    size = size or timm.get_pretrained_cfg(name).input_size[-2:]
    return timm_model(name, size), torch.randn(batch, 3, *size)


def print_plan(found: SpeedPlan, model: nn.Module, title: str, console: Console) -> None:
    """Print the layers, what was predicted and what came of it."""
    table = Table(title=title)
    table.add_column("attention", no_wrap=True)
    for column in ("input", "saves, ms", "plan"):
        table.add_column(column, justify="right")
    for layer in found.layers:
        table.add_row(
            layer.name or "(self)",
            " x ".join(map(str, layer.shape)),
            f"{layer.saved_ms:.2f}",
            "castle" if layer.name in found.chosen else "keep",
        )
    console.print(table)
    faster = sum(layer.castle for layer in found.layers)
    lines = [f"original:  {found.original_ms:8.2f} ms"]
    if faster:
        lines += [
            f"predicted: {found.predicted_ms:8.2f} ms with {faster} of {len(found.layers)} attentions castled",
            f"measured:  {found.hybrid_ms:8.2f} ms, {found.original_ms / found.hybrid_ms:.2f}x as fast as the original",
        ]
    if not found.chosen:
        lines.append(
            "Keep the original: " + ("the whole is no faster." if faster else "no attention saves time castled.")
        )
    elif has_castling_attention(model):
        lines.append(f"{len(found.chosen)} of {len(found.layers)} gain by being castled: {', '.join(found.chosen)}")
    elif len(found.chosen) == len(found.layers):
        lines.append("Castle them all: castling.convert(model)")
    else:
        lines.append(f"Castle these: castling.convert(model, only={list(found.chosen)})")
    say(*lines)
