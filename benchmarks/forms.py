"""What forms of the attention cost in time: Castling-DeiT-T with each of them, taking turns.

python benchmarks/forms.py --sizes 224 512 --engines eager openvino --out DIR
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
from rich.progress import track

import castling
from castling import AttentionConfig
from castling.bench.results_file import append_row, open_results, time_cells
from castling.exporting.engines import ENGINES, on_engine
from castling.measure import time_interleaved

MODEL = "castling_deit_tiny_patch16_224"
CENTRED: dict[str, Any] = {"kernel": "mean_centred", "output_norm": "none", "rotary": True}
FORMS = {
    "authors": AttentionConfig(),
    "rotary": AttentionConfig(rotary=True),
    "rotary_grid": AttentionConfig(rotary=True, local_conv="grid", local_conv_size=3),
    "rotary_rms": AttentionConfig(rotary=True, output_norm="rms"),
    "centred_rotary": AttentionConfig(**CENTRED),
    "centred_rotary_grid": AttentionConfig(**CENTRED, local_conv="grid", local_conv_size=3),
    "twin": AttentionConfig(kernel="softmax"),
    "twin_rotary": AttentionConfig(kernel="softmax", rotary=True),
}


def main() -> None:
    """Measure every form in every engine at every size, and write a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--sizes", type=int, nargs="+", default=[224, 512], metavar="PX", help="sides of the image")
    add("--engines", nargs="+", default=["eager", "openvino"], choices=ENGINES)
    add("--repeats", type=int, default=15, metavar="N", help="rounds of turns")
    add("--out", type=Path, required=True, metavar="DIR", help="folder for the CSV file")
    flags = parser.parse_args()
    path = open_results(flags.out, "forms_cost")
    for engine, size in track([(engine, size) for engine in flags.engines for size in flags.sizes], "Measuring"):
        image = torch.randn(1, 3, size, size)
        passes = {}
        for name, attention in FORMS.items():
            network = castling.castle(timm.create_model(MODEL, img_size=size, attention=attention), inplace=True)
            passes[name] = partial(on_engine(castling.optimize(network, inplace=True), image, engine), image)
        timings = time_interleaved(passes, repeats=flags.repeats, total_seconds=20.0)
        for name, timing in timings.items():
            cost = timing.median / timings["authors"].median
            row = {"form": name, "engine": engine, "size": size, **time_cells("median", timing), "over_authors": cost}
            append_row(path, row)
            print(f"{engine}, {size} px, {name}: {1e3 * timing.median:.2f} ms, {cost:.3f} of the authors' form")


if __name__ == "__main__":
    main()
