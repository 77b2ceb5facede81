"""What an attention does with its tokens: how many directions its outputs have, how sharp its map is, who is heard.

Every kernel here is linear in V while q and k stay, so its map is what it makes of the identity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from castling.attention import Grid, HeadMixer, attend
from castling.attention.heads import output_length, promote, smallest_norm, unit
from castling.measure.eval_mode import eval_mode


class Tokens(NamedTuple):
    """What a kernel gets.

    Args:
        q: queries `(B, N, H, D)`.
        k: keys `(B, N, H, D)`.
        v: values `(B, N, H, Dv)`.
        grid: rows and columns of the tokens behind the prefix; None for a square.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    grid: Grid | None = None


@dataclass(frozen=True)
class AttentionFacts:
    """Means over images and heads of one attention, without its branch and its convolution.

    Args:
        rank: directions that outputs have over the tokens: `exp` of the entropy of their spectrum.
        constant: share of the outputs' energy that is the same for all tokens.
        entropy: entropy of the map's rows by size of their entries, over that of equal ones; 0 for a single key.
        own: share of a row's size that is on the token itself.
    """

    rank: float
    constant: float
    entropy: float
    own: float


@contextmanager
def record_tokens(model: nn.Module) -> Iterator[dict[str, Tokens]]:
    """Keep what the kernel of every attention gets in the last pass, by the name of the attention.

    Args:
        model: the network. Attentions that make fewer queries than there are keys are left out.

    Example:
        >>> from castling import CastlingAttention
        >>> attention = CastlingAttention(64, 4)
        >>> with record_tokens(attention) as seen:
        ...     out = attention(torch.randn(2, 9, 64))
        >>> seen[""].q.shape
        torch.Size([2, 9, 4, 16])
    """
    seen: dict[str, Tokens] = {}
    mixers = {name: module for name, module in model.named_modules() if isinstance(module, HeadMixer)}

    def listening(name: str, mix: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def listen(q: Tensor, k: Tensor, v: Tensor, grid: Grid | None = None, *others: Any, **more: Any) -> Tensor:
            if q.shape[1] == k.shape[1] == v.shape[1]:
                seen[name] = Tokens(q, k, v, grid)
            return mix(q, k, v, grid, *others, **more)

        return listen

    for name, module in mixers.items():
        module.mix = listening(name, module.mix)  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        for module in mixers.values():
            del module.mix


def attention_map(module: HeadMixer, q: Tensor, k: Tensor) -> Tensor:
    """What a kernel multiplies V with, before anything is normalised: `(B, H, Nq, N)`, quadratic.

    Args:
        module: the attention.
        q: queries `(B, Nq, H, D)`, as the kernel gets them.
        k: keys `(B, N, H, D)`.
    """
    identity = torch.eye(k.shape[1], dtype=promote(q).dtype, device=q.device)
    values = identity[:, None].expand(len(q), -1, k.shape[2], -1)  # (B, N, H, N)
    return attend(promote(q), promote(k), values, module.config.kernel, **kernel_options(module)).transpose(1, 2)


def attention_facts(module: HeadMixer, tokens: Tokens) -> AttentionFacts:
    """Measure one attention on tokens that `record_tokens` kept.

    Args:
        module: the attention.
        tokens: its q, k and v.
    """
    q, k, v = (promote(x.detach()) for x in tokens[:3])
    out = attend(q, k, v, module.config.kernel, **kernel_options(module)).transpose(1, 2)  # (B, H, N, Dv)
    if output_length(module.config.output_norm, out.shape[-1]) is not None:
        out = unit(out, smallest_norm(out.dtype))
    spectrum = torch.linalg.svdvals(out)
    sizes = attention_map(module, q, k).abs()
    rows = sizes / sizes.sum(-1, keepdim=True)
    return AttentionFacts(
        rank=float(_entropy(spectrum / spectrum.sum(-1, keepdim=True)).exp().mean()),
        constant=float((out.mean(-2).square().sum(-1) / out.square().sum(-1).mean(-1)).mean()),
        entropy=float(_entropy(rows).mean() / math.log(max(rows.shape[-1], 2))),
        own=float(rows.diagonal(dim1=-2, dim2=-1).mean()),
    )


def network_facts(model: nn.Module, images: Tensor) -> dict[str, AttentionFacts]:
    """Measure all attentions of a network on a batch of images.

    Args:
        model: the network.
        images: `(B, C, H, W)`.
    """
    with eval_mode(model), torch.no_grad(), record_tokens(model) as seen:
        model(images)
        return {name: attention_facts(model.get_submodule(name), tokens) for name, tokens in seen.items()}  # type: ignore[arg-type]


def kernel_options(module: HeadMixer) -> dict[str, str]:
    """What `attend` is to be told for the kernel of an attention."""
    if module.config.kernel != "linear_angular":
        return {}
    return {"value_term": module.config.value_term, "reduction": module.config.reduction}


def _entropy(shares: Tensor) -> Tensor:
    return torch.special.entr(shares).sum(-1)
