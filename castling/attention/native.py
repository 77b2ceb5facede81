"""Passes over tokens in native code, where a compiler is: one pass for what torch does in several.

`native_code` is compiled on first use, kept in a cache, and checked against torch's own operators before it counts.
Without it, and wherever something watches or records what torch does (`castling.attention.forms.native_passes`),
torch's operators run. CASTLING_NATIVE=0 in the environment does without.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import math
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from castling.attention.forms import native_passes
from castling.attention.heads import unit
from castling.attention.linear_angular import linear_angular_attention

if TYPE_CHECKING:
    from castling.attention.grid import Grid

SOURCES = sorted(Path(__file__).with_name("native_code").glob("*"))
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fopenmp", "-fno-math-errno")
# The instructions that torch itself would use here: a file in the cache never has others than the processor.
FLAGS_OF = {"AVX512": ("-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mfma"), "AVX2": ("-mavx2", "-mfma")}
SECONDS = 120  # a compiler that takes longer is stuck
SWITCH = "CASTLING_NATIVE"
SIZES = (3, 5)  # of filters that are compiled
ROWS = 4  # channels of queries and keys come in so many
TOLERANCE = 1e-4

logger = logging.getLogger(__name__)


def can_convolve(tokens: Tensor, weight: Tensor) -> bool:
    """Whether `depthwise` may be called: nothing watches, and filters are of a size that is compiled."""
    if not native_passes(tokens, weight) or library() is None:
        return False
    return weight.shape[-1] == weight.shape[-2] in SIZES and tokens.stride(-1) == 1


def can_attend(*tokens: Tensor) -> bool:
    """Whether `attention` may be called on queries, keys and values."""
    if not native_passes(*tokens) or (code := library()) is None or any(x.stride(-1) != 1 for x in tokens):
        return False
    return tokens[0].shape[-1] % ROWS == 0 and tokens[-1].shape[-1] % int(code.castling_lanes()) == 0


def depthwise(
    tokens: Tensor,
    weight: Tensor,
    grid: Grid,
    num_prefix_tokens: int = 0,
    gelu: bool = False,
    rows: tuple[int, int] | None = None,
    code: ctypes.CDLL | None = None,
) -> Tensor:
    """Depthwise convolution with zero padding, and GELU, in one pass; prefix tokens go around the convolution.

    Args:
        tokens: tokens `(B, N, C)`, prefix tokens included.
        weight: filters `(C, 1, k, k)`.
        grid: rows and columns.
        num_prefix_tokens: tokens in front that are no part of the grid.
        gelu: whether the activation follows.
        rows: the first of the rows that are wanted and the one behind them; None for all.
        code: the compiled passes; those of `library` where None.

    Returns:
        Prefix tokens and those of the rows that are wanted, `(B, N', C)`.

    Raises:
        ValueError: for tokens or filters that do not fit.
    """
    code, (first, last) = code or _needed(), rows or (0, grid[0])
    batch, num_tokens, channels = tokens.shape
    fits = num_tokens == num_prefix_tokens + grid[0] * grid[1] and len(weight) == channels
    fits = fits and weight.dtype == torch.float32 and weight.shape[-1] == weight.shape[-2] in SIZES
    if not fits or tokens.dtype != torch.float32 or tokens.stride(-1) != 1:
        raise ValueError(f"{tokens.dtype} tokens {tuple(tokens.shape)} do not fit {grid} and {num_prefix_tokens} more")
    out = tokens.new_empty(batch, num_prefix_tokens + (last - first) * grid[1], channels)
    weight = weight.contiguous()
    code.castling_depthwise(
        *(tokens.data_ptr(), *tokens.stride()[:2], weight.data_ptr(), out.data_ptr(), batch),
        *(num_prefix_tokens, *grid, first, last, channels, weight.shape[-1], gelu),
    )
    return out


@dataclass(frozen=True)
class Terms:
    """What linear attention is made of: `scale * (own + of_products * q (k^T v) + of_sum * sum(v)) + convolution`.

    Args:
        of_products: factor of the products.
        of_sum: factor of the sum of all values; of no effect where each query has a value of its own.
        centred: whether the mean of all keys is taken from them, instead of making q and k unit vectors.
        scale: factor of all but the convolution: the length of the output where it is normalised.
        normalised: whether it is.
        eps: length up to which queries and keys have no direction.
        eps_out: the same of outputs.
    """

    of_products: float
    of_sum: float
    centred: bool
    scale: float
    normalised: bool
    eps: float
    eps_out: float


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    own_value: Tensor | None,
    terms: Terms,
    table: Tensor | None = None,
    taps: Tensor | None = None,
    local: Tensor | None = None,
    code: ctypes.CDLL | None = None,
) -> Tensor:
    """Linear attention with its norms, rotary positions and convolution, in one pass for sums and one for outputs.

    Args:
        q: queries `(B, Nq, H, D)`.
        k: keys `(B, N, H, D)`.
        v: values `(B, N, H, Dv)`.
        own_value: what each query adds to its products `(B, Nq, H, Dv)`; None for a share of the sum of all values.
        terms: factors.
        table: cosines and sines `(2, N, 1, D / 2)` by which q and k are still to be turned.
        taps: filters along the tokens `(H * Dv, 1, taps)`, where queries are as many as values.
        local: what is added at the end `(B, Nq, H, Dv)`.
        code: the compiled passes; those of `library` where None.

    Returns:
        `(B, Nq, H, Dv)`.

    Raises:
        ValueError: for summands or filters that do not fit.
    """
    code = code or _needed()
    (batch, num_queries, num_heads, dim), width = q.shape, v.shape[-1]
    out = q.new_empty(batch, num_queries, num_heads, width)
    for x in (own_value, local):
        if x is not None and (x.shape != out.shape or x.dtype != torch.float32 or x.stride(-1) != 1):
            raise ValueError(f"expected float32 tokens {tuple(out.shape)}; got {x.dtype} {tuple(x.shape)}")
    if taps is not None and (len(taps) != num_heads * width or num_queries != v.shape[1]):
        raise ValueError(f"expected a filter for each of {num_heads * width} channels; got {tuple(taps.shape)}")
    table, taps, local = (None if x is None else x.contiguous() for x in (table, taps, local))
    tokens = [cell for x in (q, k, v, own_value) for cell in ((None, 0, 0, 0) if x is None else _place(x))]
    code.castling_attention(
        *(out.data_ptr(), *tokens, *(None if x is None else x.data_ptr() for x in (table, taps, local))),
        *(0 if taps is None else taps.shape[-1], batch, num_queries, k.shape[1], num_heads, dim, width),
        *(terms.centred, terms.of_products, terms.of_sum, terms.scale, terms.normalised, terms.eps, terms.eps_out),
    )
    return out


def _place(x: Tensor) -> tuple[int, ...]:
    """Where token-major tensors lie: address, and strides of images, tokens and heads."""
    return x.data_ptr(), *x.stride()[:3]


def _needed() -> ctypes.CDLL:
    code = library()
    if code is None:
        raise RuntimeError("there are no native passes here: ask can_convolve or can_attend first")
    return code


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """The compiled passes; None without a compiler, where they fail the check, or where they are switched off."""
    if os.environ.get(SWITCH, "1") == "0":
        return None
    try:
        code = _load(_compiled())
        _check(code)
    except (OSError, RuntimeError, subprocess.SubprocessError, AttributeError, ArithmeticError) as error:
        logger.info("no native passes, torch's operators are used: %s", error)
        return None
    return code


def _compiled() -> Path:
    """The shared library of this source for this compiler and this kind of processor, compiled if it is not there."""
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))), None)
    if compiler is None:
        raise OSError("there is no C++ compiler")
    flags = [*FLAGS, *FLAGS_OF.get(torch.backends.cpu.get_cpu_capability(), ())]
    about = subprocess.run([compiler, "--version"], capture_output=True, check=True, timeout=SECONDS).stdout
    texts = [source.read_bytes() for source in SOURCES]
    key = hashlib.sha256(b"\0".join([*texts, about, " ".join(flags).encode()])).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "castling"
    cache.mkdir(parents=True, exist_ok=True)
    path = cache / f"native-{key}.so"
    if not path.is_file():
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            sources = [str(source) for source in SOURCES if source.suffix == ".cpp"]
            parts = [f"{Path(source).stem}.o" for source in sources]
            # Linked without an OpenMP runtime: its names, and so its threads, are those of the one torch has loaded.
            for words in ([*flags, "-c", *sources], ["-shared", *parts, "-o", path.name]):
                subprocess.run([compiler, *words], capture_output=True, check=True, timeout=SECONDS, cwd=folder)
            (Path(folder) / path.name).replace(path)
    return path


def _load(path: Path) -> ctypes.CDLL:
    code = ctypes.CDLL(str(path))
    pointer, whole, number, flag = ctypes.c_void_p, ctypes.c_long, ctypes.c_float, ctypes.c_int
    code.castling_depthwise.argtypes = [pointer, whole, whole, pointer, pointer, *[whole] * 8, flag]
    tokens = [pointer, whole, whole, whole]
    factors: list[type] = [flag, number, number, number, flag, number, number]
    code.castling_attention.argtypes = [pointer, *tokens * 4, *[pointer] * 3, *[whole] * 7, *factors]  # type: ignore[list-item]
    return code


def _check(code: ctypes.CDLL) -> None:
    """Compare with torch's operators.

    Raises:
        ArithmeticError: where results differ.
    """
    random = torch.Generator().manual_seed(0)
    tokens, weight = torch.randn(1, 1 + 35, 24, generator=random), torch.randn(24, 1, 3, 3, generator=random)
    image = tokens[:, 1:].mT.unflatten(2, (5, 7))
    patches = F.conv2d(image, weight, padding=1, groups=24).flatten(2).mT
    expected = F.gelu(torch.cat([tokens[:, :1], patches], 1))
    _compare(depthwise(tokens, weight, (5, 7), 1, gelu=True, code=code), expected)
    q, k, v = torch.randn(1, 36, 3, 2, 32, generator=random).unbind(2)
    taps = torch.randn(64, 1, 5, generator=random)
    terms = Terms(2 / math.pi, 0.0, centred=False, scale=1.0, normalised=True, eps=1e-7, eps_out=2e-7)
    local = F.conv1d(v.flatten(2).mT, taps, padding=2, groups=64).mT.unflatten(2, (2, 32))
    expected = unit(linear_angular_attention(q, k, v), 1e-7) + local
    _compare(attention(q, k, v, v, terms, taps=taps, code=code), expected)


def _compare(found: Tensor, expected: Tensor) -> None:
    difference = float((found - expected).abs().max())
    if not difference < TOLERANCE:
        raise ArithmeticError(f"outputs differ from those of torch's operators by {difference:.2g}")
