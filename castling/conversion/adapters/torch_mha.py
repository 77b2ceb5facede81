"""`torch.nn.MultiheadAttention` as self-attention: `nn.TransformerEncoderLayer`, torchvision's ViT, and others' blocks.

torch's encoder layers have a fast path that reads the weights past their attention module. The stand-in says that it
is not fit for it.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from castling.config import AttentionConfig
from castling.conversion.adapters.adapter import Adapter, Site, no_grid, refuse_masks
from castling.conversion.converted import ConvertedAttention


class TorchAttention(ConvertedAttention):
    """In place of `nn.MultiheadAttention`: `forward(x, x, x, ...)` gives tokens and no map."""

    in_proj_weight: Tensor
    in_proj_bias: Tensor | None
    out_proj: nn.Linear
    _qkv_same_embed_dim = False  # what keeps the fast path away; in truth the three are of one width

    def __init__(self, host: nn.MultiheadAttention, config: AttentionConfig) -> None:
        super().__init__(host, host.num_heads, config, attn_drop=host.dropout)
        self.embed_dim, self.head_dim = host.embed_dim, host.head_dim
        self.batch_first = host.batch_first

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        """Attend among tokens `(B, N, dim)`, `(N, B, dim)` or `(N, dim)`, given three times; without masks or maps."""
        refuse_masks(key_padding_mask=key_padding_mask, attn_mask=attn_mask, is_causal=is_causal)
        if need_weights:
            raise ValueError("need_weights: linear attention makes no attention maps; pass need_weights=False")
        if query is not key or key is not value:
            raise ValueError("cross attention: query, key and value must be one tensor")
        if query.is_nested:
            raise ValueError("nested tensors stand for a padding mask, and linear attention knows no masks")
        x = query if query.ndim == 3 else query.unsqueeze(0 if self.batch_first else 1)
        x = x if self.batch_first else x.transpose(0, 1)
        qkv = F.linear(x, self.in_proj_weight, self.in_proj_bias)
        q, k, v = qkv.unflatten(-1, (3, self.num_heads, -1)).unbind(2)  # (B, N, H, D) each
        out = self.out_proj(self.attend(q, k, v).flatten(2))
        out = out if self.batch_first else out.transpose(0, 1)
        return (out if query.ndim == 3 else out.squeeze(0 if self.batch_first else 1)), None

    @property
    def output_projection(self) -> nn.Linear | None:
        """Always there."""
        return self.out_proj


def _refuses(site: Site, config: AttentionConfig) -> str | None:
    host: Any = site.module
    if site.ancestors and isinstance(site.ancestors[0], nn.TransformerDecoderLayer):
        return "attention of a decoder: it is causal or between two sequences"
    if not host._qkv_same_embed_dim:
        return f"keys and values of other widths (kdim={host.kdim}, vdim={host.vdim})"
    if host.bias_k is not None or host.add_zero_attn:
        return "extra keys (add_bias_kv or add_zero_attn)"
    return None


ADAPTER = Adapter(
    family="torch.nn.MultiheadAttention",
    hosts=(nn.MultiheadAttention,),
    build=lambda site, config: TorchAttention(site.module, config),  # type: ignore[arg-type]
    refuses=_refuses,
    grid_source=no_grid,
)
