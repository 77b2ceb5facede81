"""Speed of linear-angular attention beside fused softmax attention and beside its own two matrix products.

    python benchmarks/attention.py

Prints ratios of times taken in one run, in turns, and writes them to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from castling import AttentionConfig
from castling.attention import linear_angular_attention
from castling.attention.folded import folded_attention
from castling.attention.heads import smallest_norm
from castling.bench.results_file import append_row, result_path
from castling.measure import time_interleaved
from castling.measure.environment import describe_environment

TOKENS = (196, 1024, 4096, 16_384)
FORMS = ("eager", "compiled", "folded")  # the last is that of optimized networks


def measure(num_tokens: int, num_heads: int, head_dim: int, repeats: int) -> dict[str, float]:
    """Median times in milliseconds and their ratios."""
    q, k, v = torch.randn(1, num_tokens, 3, num_heads, head_dim).unbind(2)
    heads = [x.transpose(1, 2) for x in (q, k, v)]
    kv = torch.randn(1, num_heads, head_dim, head_dim)
    compiled = torch.compile(linear_angular_attention, dynamic=False)
    timings = time_interleaved(
        {
            "sdpa": lambda: F.scaled_dot_product_attention(*heads),
            "products": lambda: (heads[1].mT @ heads[2], heads[0] @ kv),
            "eager": lambda: linear_angular_attention(q, k, v),
            "compiled": lambda: compiled(q, k, v),
            "folded": lambda: folded_attention(q, k, v, v, None, AttentionConfig(), smallest_norm(q.dtype)),
        },
        repeats=repeats,
    )
    medians = {name: timing.median for name, timing in timings.items()}
    return {
        **{f"{name}_ms": seconds * 1e3 for name, seconds in medians.items()},
        **{f"sdpa_over_{form}": medians["sdpa"] / medians[form] for form in FORMS},
        **{f"{form}_over_products": medians[form] / medians["products"] for form in FORMS},
    }


def main() -> None:
    """Measure, print, and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=list(TOKENS))
    parser.add_argument("--heads", type=int, default=3)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="folder of the CSV file")
    flags = parser.parse_args()

    # The largest first: then every other size runs in memory that the process already holds.
    order = sorted(set(flags.tokens), reverse=True)
    with torch.inference_mode():
        rows = {
            n: measure(n, flags.heads, flags.head_dim, flags.repeats if n < 10_000 else 5)
            for n in track(order, "Measuring")
        }

    environment = describe_environment()
    path = result_path(flags.out, "attention", environment)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    title = f"{flags.heads} heads of {flags.head_dim}, batch 1, float32, {environment['threads']} threads"
    table = Table(title=title, box=box.SIMPLE, padding=(0, 1, 0, 0))
    for name in ("tokens", *rows[order[0]]):
        table.add_column(name.replace("_over_", "/\n").replace("_", "\n"), justify="right")
    command = shlex.join(["python", "benchmarks/attention.py", *sys.argv[1:]])
    for num_tokens in reversed(order):
        values = {name: f"{value:.3g}" for name, value in rows[num_tokens].items()}
        append_row(path, {"tokens": num_tokens, **values, "heads": flags.heads, "head_dim": flags.head_dim}, command)
        table.add_row(f"{num_tokens:,}", *values.values())
    Console().print(table)
    Console().print(f"wrote {path}", soft_wrap=True)


if __name__ == "__main__":
    main()
