"""Settings as frozen dataclasses, checked when they are made.

Every choice on which the paper, its released code and its tables disagree is a field here; `docs/paper_notes.md` has
one line for each.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, cast, get_args

from castling.sentences import shown as in_short

KernelName = Literal[
    "linear_angular", "mean_centred", "softmax_kernel", "cosine", "relu_s", "relu_e", "angular", "softmax"
]
ValueTerm = Literal["own", "sum"]
Reduction = Literal["sum", "mean"]
OutputNorm = Literal["joint", "rms", "aux", "none"]
LocalConv = Literal["tokens", "grid", "none"]
Similarity = Literal["scaled_dot", "dot", "cosine"]


def check_choice(what: str, value: object, legal: Iterable[str], shown: str | None = None) -> None:
    """Refuse a `value` that is not one of the `legal` names; a message calls it `shown` where that is given.

    Raises:
        ValueError: names the value, the nearest legal name and all legal names.

    Example:
        >>> check_choice("kernel", "softmx", ["softmax", "relu_s"])
        Traceback (most recent call last):
        ValueError: unknown kernel 'softmx': did you mean 'softmax'? Legal: 'softmax', 'relu_s'
    """
    legal = list(legal)
    if value in legal:
        return
    near = difflib.get_close_matches(value if isinstance(value, str) else in_short(value), legal, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(f"unknown {what} {in_short(shown or value, 300)}: {hint}Legal: {', '.join(map(repr, legal))}")


def check_type(what: str, value: object, legal: type | tuple[type, ...], shown: str) -> None:
    """Refuse an argument of another type by a sentence, before it fails somewhere within.

    Args:
        what: the argument.
        value: what was given.
        legal: what it may be.
        shown: the same in words.

    Raises:
        TypeError: names the value, its type and what it may be.

    Example:
        >>> check_type("blend", "half", (int, float), "a number")
        Traceback (most recent call last):
        TypeError: blend must be a number; got 'half', a str
    """
    if not isinstance(value, legal):
        raise TypeError(f"{what} must be {shown}; got {reprlib.repr(value)}, a {type(value).__name__}")


def check_odd(what: str, value: int) -> None:
    """Refuse a kernel size that has no centre.

    Raises:
        ValueError: if `value` is even or below 1.
    """
    if value < 1 or value % 2 == 0:
        raise ValueError(f"{what} must be odd and positive, so that it has a centre; got {value}")


def check_threshold(value: float, relative: bool = False) -> None:
    """Refuse a mask threshold that no attention weight can be compared with.

    Raises:
        ValueError: if an absolute threshold lies outside [0, 1], or a relative one (a multiple of 1/N) is negative.
    """
    if relative and not value >= 0:
        raise ValueError(f"a threshold relative to 1/N must be at least 0; got {value}")
    if not relative and not 0 <= value <= 1:
        raise ValueError(f"threshold must lie in [0, 1], as attention weights do; got {value}")


@dataclass(frozen=True)
class AttentionConfig:
    """What a `CastlingAttention` computes. The defaults are the authors' released block.

    Args:
        kernel: the similarity, a name in `castling.attention.KERNELS`.
        value_term: the kernel's constant term: each token's own value, `1/2 V_i` (the paper's Eq. 9), or the exact
            expansion's `1/2 sum_j V_j`. Linear-angular only.
        reduction: sums over tokens as they are, or divided by the number of tokens, which makes the mix of the terms
            independent of the resolution. Linear-angular only.
        output_norm: L2-normalise kernel and branch together (`joint`, the code), the branch alone (`aux`, the text)
            or nothing (`none`, Eq. 9 as printed). `rms`, not of the paper, is `joint` with a root mean square of 1
            instead of a length of 1, so that the attention is not small beside the convolution.
        local_conv: one filter per head along the token sequence (`tokens`), on the 2-D grid without the prefix tokens
            (`grid`), or `none`.
        local_conv_size: taps of that filter, per axis.
        rotary: whether q and k are turned by their places on the grid, so that attention depends on where tokens lie
            as seen from each other. Not of the paper; any kernel.
        aux: whether the auxiliary masked softmax branch exists.
        threshold: the mask's cut, the paper's epsilon.
        threshold_relative: whether `threshold` counts in units of 1/N.
        aux_similarity: what the branch takes the softmax of: `q.k / sqrt(D)` (the code), `q.k` (Eq. 10 as printed) or
            the `q.k` of unit vectors (the notation of Eq. 8).

    Raises:
        ValueError: names the bad value and the legal ones.

    Example:
        >>> AttentionConfig(kernel="relu_e", threshold=0.05).local_conv
        'tokens'
    """

    kernel: KernelName = "linear_angular"
    value_term: ValueTerm = "own"
    reduction: Reduction = "sum"
    output_norm: OutputNorm = "joint"
    local_conv: LocalConv = "tokens"
    local_conv_size: int = 9
    rotary: bool = False
    aux: bool = True
    threshold: float = 0.02
    threshold_relative: bool = False
    aux_similarity: Similarity = "scaled_dot"

    def __post_init__(self) -> None:
        check_choice("kernel", self.kernel, get_args(KernelName))
        check_choice("value_term", self.value_term, get_args(ValueTerm))
        check_choice("reduction", self.reduction, get_args(Reduction))
        check_choice("output_norm", self.output_norm, get_args(OutputNorm))
        check_choice("local_conv", self.local_conv, get_args(LocalConv))
        check_choice("aux_similarity", self.aux_similarity, get_args(Similarity))
        check_odd("local_conv_size", self.local_conv_size)
        check_threshold(self.threshold, self.threshold_relative)

    def with_kernel(self, kernel: str | None) -> AttentionConfig:
        """The same with another kernel; softmax, which needs no stand-in for residuals, loses branch and output norm.

        Example:
            >>> AttentionConfig().with_kernel("softmax").aux
            False
        """
        if kernel is None:
            return self
        check_choice("kernel", kernel, get_args(KernelName))
        if kernel == "softmax":
            return replace(self, kernel="softmax", aux=False, output_norm="none")
        return replace(self, kernel=cast(KernelName, kernel))

    @classmethod
    def of(cls, given: AttentionConfig | Mapping[str, Any] | None) -> AttentionConfig:
        """What is given as it is, or its fields as plain values, as files of others have them; the default for None.

        Raises:
            ValueError: for a field that there is not.

        Example:
            >>> AttentionConfig.of({"rotary": True}).rotary
            True
        """
        if isinstance(given, AttentionConfig):
            return given
        for name in given or {}:
            check_choice("option of the attention", name, [one.name for one in fields(cls)])
        return cls(**(given or {}))

    @classmethod
    def baseline(cls) -> AttentionConfig:
        """Plain softmax attention through the fused kernel: what every comparison is made against."""
        return cls(kernel="softmax", output_norm="none", local_conv="none", aux=False)
