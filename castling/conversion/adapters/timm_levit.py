"""timm's LeViT: narrow q and k, batch-normed projections, position biases, an activation before the way out.

Both its attentions, within stages and between them, in the linear form and the convolutional one (`levit_conv_*`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn

from castling.attention import Grid
from castling.attention.grid import strided
from castling.config import AttentionConfig
from castling.conversion.adapters.adapter import Adapter, Site, bias_note
from castling.conversion.converted import ConvertedAttention
from castling.models.pooling import slice_tokens


class _ConvertedLevit(ConvertedAttention):
    """What both share: tokens or images in and out, and the biases."""

    proj: nn.Module
    attention_biases: Tensor
    attention_bias_idxs: Tensor

    def __init__(self, host: Any, config: AttentionConfig) -> None:
        super().__init__(host, host.num_heads, config)
        self.key_dim, self.head_dim = host.key_dim, host.val_dim

    def _heads(self, x: Tensor) -> Tensor:
        """Tokens `(B, N, C)` or images `(B, C, rows, columns)` by head, `(B, N, H, C / H)`."""
        tokens = x.flatten(2).mT if x.ndim == 4 else x
        return tokens.unflatten(-1, (self.num_heads, -1))

    def _bias(self) -> Tensor:
        return self.attention_biases[:, self.attention_bias_idxs]  # (H, Nq, N)

    def clear_cache(self, host: Any) -> None:
        """Drop the biases of the last pass: with gradients on they cannot be copied, and training makes them wrong."""
        host.attention_bias_cache = {}


class ConvertedLevitStage(_ConvertedLevit):
    """In place of `timm.models.levit.Attention`."""

    qkv: nn.Module

    def __init__(self, host: Any, config: AttentionConfig) -> None:
        super().__init__(host, config)
        self.grid: Grid | None = getattr(host, "resolution", None)  # older timm does not tell: a square then

    def forward(self, x: Tensor) -> Tensor:
        """Attend among tokens `(B, N, dim)`, or the same as an image."""
        widths = [self.key_dim, self.key_dim, self.head_dim]
        q, k, v = self._heads(self.qkv(x)).split(widths, dim=-1)  # (B, N, H, D) each
        out = self.attend(q, k, v, self.grid, self._bias).flatten(2)
        return self.proj(out.mT.unflatten(-1, x.shape[2:]) if x.ndim == 4 else out)


class ConvertedLevitDownsample(_ConvertedLevit):
    """In place of `timm.models.levit.AttentionDownsample`: a part of the tokens asks all of them."""

    q: nn.Module
    kv: nn.Module

    def __init__(self, host: Any, config: AttentionConfig) -> None:
        super().__init__(host, config)
        self.grid: Grid = host.resolution
        self.stride = host.stride

    def forward(self, x: Tensor) -> Tensor:
        """Attend from the tokens that stay to all tokens `(B, N, dim)`, or the same as images."""
        k, v = self._heads(self.kv(x)).split([self.key_dim, self.head_dim], dim=-1)
        q = self._heads(self.q(x))  # (B, Nq, H, D)
        subsample = partial(slice_tokens, grid=self.grid, stride=self.stride)
        out = self.attend(q, k, v, self.grid, self._bias, subsample).flatten(2)
        return self.proj(out.mT.unflatten(-1, strided(self.grid, self.stride)) if x.ndim == 4 else out)


def _build(site: Site, config: AttentionConfig) -> ConvertedAttention:
    downsamples = hasattr(site.module, "kv")
    return (ConvertedLevitDownsample if downsamples else ConvertedLevitStage)(site.module, config)


def _notes(site: Site, config: AttentionConfig) -> list[str]:
    host: Any = site.module
    return bias_note(host.attention_bias_idxs.shape[1], config)


ADAPTER = Adapter(
    family="timm LeViT",
    hosts=("timm.models.levit:Attention", "timm.models.levit:AttentionDownsample"),
    build=_build,
    notes=_notes,
)
