"""`castling bench`: speed and cost, always beside softmax attention in the same run."""

from __future__ import annotations

import argparse
from functools import partial

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from castling.attention import KERNELS, attend
from castling.cli import HelpFormatter
from castling.measure import Timing, count_macs, time_interleaved

TOKENS = [64, 128, 196, 256, 512, 1024, 2048, 4096, 8192, 16_384]


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb and its flags."""
    parser = verbs.add_parser("bench", help="measure speed and cost")
    subjects = parser.add_subparsers(title="what to measure", metavar="WHAT", required=True)
    attention = subjects.add_parser(
        "attention",
        help="one attention, without a network around it",
        description="Compare fused softmax attention with a linear kernel, for one image of N tokens.",
        epilog="Example: castling bench attention --tokens 196 1024 --kernel relu_e",
        formatter_class=HelpFormatter,
    )
    attention.add_argument("--tokens", type=int, nargs="+", default=TOKENS, metavar="N", help="numbers of tokens")
    attention.add_argument("--heads", type=int, default=3, metavar="N", help="number of heads")
    attention.add_argument("--head-dim", type=int, default=64, metavar="N", help="channels of a head")
    attention.add_argument("--kernel", choices=KERNELS, default="linear_angular", help="kernel to compare with")
    attention.add_argument("--repeats", type=int, default=5, metavar="N", help="rounds in which the two take turns")
    attention.set_defaults(run=run_attention)


def run_attention(flags: argparse.Namespace) -> None:
    """Print a table of MACs and times over the number of tokens."""
    if min(*flags.tokens, flags.heads, flags.head_dim) < 1:
        raise ValueError(
            f"tokens, heads and head-dim must be at least 1; got {flags.tokens}, {flags.heads} and {flags.head_dim}"
        )
    table = Table(
        title=f"softmax (fused SDPA) and {flags.kernel}: {flags.heads} heads of {flags.head_dim} channels, batch 1, "
        f"float32, {torch.get_num_threads()} threads"
    )
    for column in ("tokens", "softmax MACs", "kernel MACs", "fewer", "softmax ms", "kernel ms", "faster"):
        table.add_column(column, justify="right")
    # The largest first: then every other size runs in memory that the process already holds.
    costs = {
        num_tokens: _cost(num_tokens, flags)
        for num_tokens in track(sorted(set(flags.tokens), reverse=True), "Measuring")
    }
    for num_tokens, ((softmax_macs, macs), (softmax, linear)) in reversed(costs.items()):
        table.add_row(
            f"{num_tokens:,}",
            f"{softmax_macs / 1e6:,.0f} M",
            f"{macs / 1e6:,.0f} M",
            f"{softmax_macs / macs:.1f}x",
            f"{softmax.median * 1e3:.2f}",
            f"{linear.median * 1e3:.2f}",
            f"{softmax.median / linear.median:.1f}x",
        )
    Console().print(table)


@torch.inference_mode()
def _cost(num_tokens: int, flags: argparse.Namespace) -> tuple[tuple[int, int], tuple[Timing, Timing]]:
    """MACs and times of softmax and of the kernel."""
    q, k, v = torch.randn(1, num_tokens, 3, flags.heads, flags.head_dim).unbind(2)
    softmax, linear = (partial(attend, q, k, v, name) for name in ("softmax", flags.kernel))
    timings = time_interleaved({"softmax": softmax, "kernel": linear}, repeats=flags.repeats)
    return (count_macs(softmax).total, count_macs(linear).total), (timings["softmax"], timings["kernel"])
