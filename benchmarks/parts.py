"""Parts of a network in native code and by oneDNN beside torch's own operators: one image, taking turns.

python benchmarks/parts.py --out DIR
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest import mock

import torch
from rich.progress import track
from torch import Tensor, nn

from castling import AttentionConfig, CastlingAttention
from castling.attention import Mlp, native
from castling.bench.results_file import append_row, open_results, time_cells
from castling.conversion.fast_linear import FastLinear, fast_linear
from castling.measure import time_interleaved
from castling.measure.heap import keep_heap

SIDES, WIDTHS = (14, 32, 64), (192, 768)
HEAD_DIM = 64


def attention(width: int, **config: object) -> Callable[[Tensor], Tensor]:
    """What lies between the projections of an attention."""
    layer = CastlingAttention(
        width, width // HEAD_DIM, config=AttentionConfig(aux=False, **config), num_prefix_tokens=1
    )
    layer.eval().requires_grad_(False).fold()
    layer.qkv, layer.proj = nn.Identity(), nn.Identity()
    return layer


def middle(width: int) -> Callable[[Tensor], Tensor]:
    """What lies between the two layers of an MLP."""
    layer = Mlp(4 * width, conv_size=5, num_prefix_tokens=1).eval().requires_grad_(False)
    layer.fc1, layer.fc2 = nn.Identity(), nn.Identity()
    return layer


def linear(width: int) -> Callable[[Tensor], Tensor]:
    """The first layer of an MLP."""
    return fast_linear(nn.Linear(width, 4 * width).eval().requires_grad_(False))


PARTS = {
    "attention": (attention, 3),
    "attention, rotary": (lambda width: attention(width, rotary=True), 3),
    "convolution and GELU": (middle, 4),
    "linear layer": (linear, 1),
}


def by_torch(part: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The part by torch's own operators."""
    if isinstance(part, FastLinear):
        return nn.Linear.forward(part, x)
    with mock.patch.object(native, "library", return_value=None):
        return part(x)


def main() -> None:
    """Time every part, and write a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15, metavar="N", help="rounds of turns")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the CSV file")
    flags = parser.parse_args()
    keep_heap()
    if native.library() is None:
        raise SystemExit("there are no native passes here")
    path = open_results(flags.out, "parts")
    places = [(name, side, width) for name in PARTS for side in SIDES for width in WIDTHS]
    for name, side, width in track(places, "Measuring"):
        build, share = PARTS[name]
        part, x = build(width), torch.randn(1, 1 + side * side, share * width)
        with torch.inference_mode():
            passes = {"native": partial(part, x), "torch": partial(by_torch, part, x)}
            timings = time_interleaved(passes, repeats=flags.repeats)
        row = {"part": name, "tokens": x.shape[1], "channels": width}
        for kind, timing in timings.items():
            row |= time_cells(kind, timing)
        faster = timings["torch"].median / timings["native"].median
        append_row(path, {**row, "faster": faster})
        print(f"{name}, {x.shape[1]} tokens, {width} channels: {faster:.2f}x")


if __name__ == "__main__":
    main()
