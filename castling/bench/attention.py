"""One attention without a network: fused softmax beside every other kernel, and where they cross.

A linear kernel always loses somewhere, as few tokens make a small map. The crossover is the number of tokens from which
it is faster and stays so. Quadratic kernels, which hold several N x N maps, are measured up to 4,096 tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from castling.attention import KERNELS, attend
from castling.bench.results_file import time_cells
from castling.config import check_choice
from castling.measure import count_macs, time_interleaved

TOKENS = (49, 64, 100, 144, 196, 256, 400, 576, 784, 1024, 2048, 4096, 8192, 16_384)
COMPARED_KERNELS = tuple(name for name in KERNELS if name != "softmax")
MOST_QUADRATIC_TOKENS = 4096

Row = dict[str, Any]


@torch.inference_mode()
def measure_kernels(
    num_tokens: int,
    kernels: Sequence[str] = COMPARED_KERNELS,
    heads: int = 3,
    head_dim: int = 64,
    threads: int | None = None,
    repeats: int = 5,
) -> list[Row]:
    """MACs and times of softmax and of every kernel, taking turns: batch 1, float32, eager, on the CPU.

    Args:
        num_tokens: the number of tokens, N.
        kernels: names in `castling.attention.KERNELS`; quadratic ones are left out above 4,096 tokens.
        heads: number of heads.
        head_dim: channels of a head.
        threads: threads of torch for this call; as they are by default.
        repeats: number of rounds in which the candidates take turns.

    Returns:
        One row for each kernel that is measured.

    Raises:
        ValueError: for an unknown kernel, or a number below 1.

    Example:
        >>> row, = measure_kernels(64, ["relu_s"], heads=1, head_dim=32, repeats=1)
        >>> row["softmax_macs"], row["kernel_macs"], row["faster"] > 0
        (262144, 131072, True)
    """
    for kernel in kernels:
        check_choice("kernel", kernel, KERNELS)
    before = torch.get_num_threads()
    threads = before if threads is None else threads
    if min(num_tokens, heads, head_dim, threads) < 1:
        raise ValueError(
            f"tokens, heads, head dimension and threads must be at least 1; got {num_tokens}, {heads}, {head_dim} "
            f"and {threads}"
        )
    kernels = [name for name in kernels if KERNELS[name].linear or num_tokens <= MOST_QUADRATIC_TOKENS]
    if not kernels:
        return []
    q, k, v = torch.randn(1, num_tokens, 3, heads, head_dim).unbind(2)
    calls = {name: partial(attend, q, k, v, name) for name in ("softmax", *kernels)}
    macs = {name: count_macs(call).total for name, call in calls.items()}
    try:
        torch.set_num_threads(threads)
        timings = time_interleaved(calls, repeats=repeats)
    finally:
        torch.set_num_threads(before)
    softmax = timings["softmax"]
    return [
        {
            "tokens": num_tokens,
            "heads": heads,
            "head_dim": head_dim,
            "threads": threads,
            "kernel": name,
            **time_cells("softmax", softmax),
            **time_cells("kernel", timings[name]),
            "faster": softmax.median / timings[name].median,
            "softmax_macs": macs["softmax"],
            "kernel_macs": macs[name],
            "fewer_macs": macs["softmax"] / macs[name],
        }
        for name in kernels
    ]


def crossover(tokens: Sequence[int], faster: Sequence[float]) -> int | None:
    """The smallest number of tokens from which a kernel is faster than softmax at every larger one as well.

    Args:
        tokens: numbers of tokens, in any order.
        faster: time of softmax over that of the kernel, at each of them.

    Returns:
        None where the kernel is not faster at the largest.

    Example:
        >>> crossover([64, 196, 1024, 4096], [1.1, 0.8, 1.5, 9.0])
        1024
    """
    found = None
    for num_tokens, ratio in sorted(zip(tokens, faster, strict=True), reverse=True):
        if ratio <= 1:
            break
        found = num_tokens
    return found


def crossovers(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The crossover of every kernel, head size and number of threads among rows of `measure_kernels`."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["kernel"], row["head_dim"], row["threads"]), []).append(row)
    return [
        {
            "kernel": kernel,
            "head_dim": head_dim,
            "threads": threads,
            "crossover": crossover([row["tokens"] for row in group], [row["faster"] for row in group]),
            "largest": max(row["tokens"] for row in group),
        }
        for (kernel, head_dim, threads), group in groups.items()
    ]
