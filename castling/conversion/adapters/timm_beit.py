"""timm's BEiT and BEiT v2: biases beside the qkv layer, and relative positions on the logits.

Positions that all layers share are refused: the model makes them, N x N, whether an attention needs them or not.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from castling.config import AttentionConfig
from castling.conversion.adapters.adapter import Adapter, Site, bias_note, refuse_masks
from castling.conversion.adapters.timm_vit import patch_embed, prefix_tokens
from castling.conversion.converted import ConvertedAttention


class BeitAttention(ConvertedAttention):
    """In place of `timm.models.beit.Attention`: `forward(x, shared_rel_pos_bias)` maps `(B, N, dim)` to the same."""

    qkv: nn.Linear
    q_bias: Tensor | None
    k_bias: Tensor
    v_bias: Tensor
    relative_position_bias_table: Tensor
    relative_position_index: Tensor
    proj: nn.Linear
    proj_drop: nn.Module

    def __init__(self, host: Any, config: AttentionConfig, num_prefix_tokens: int) -> None:
        super().__init__(host, host.num_heads, config, num_prefix_tokens, host.attn_drop.p)
        self.head_dim = host.proj.in_features // host.num_heads

    def forward(self, x: Tensor, shared_rel_pos_bias: Tensor | None = None) -> Tensor:
        """Attend among tokens."""
        refuse_masks(shared_rel_pos_bias=shared_rel_pos_bias)
        bias = None if self.q_bias is None else torch.cat((self.q_bias, self.k_bias, self.v_bias))
        qkv = F.linear(x, self.qkv.weight, bias)
        q, k, v = qkv.unflatten(-1, (3, self.num_heads, -1)).unbind(2)  # (B, N, H, D) each
        out = self.attend(q, k, v, bias=None if self.relative_position_bias_table is None else self._bias)
        return self.proj_drop(self.proj(out.flatten(2)))

    def _bias(self) -> Tensor:
        return self.relative_position_bias_table[self.relative_position_index].permute(2, 0, 1)  # (H, N, N)

    @property
    def output_projection(self) -> nn.Linear | None:
        """Always there."""
        return self.proj


def _refuses(site: Site, config: AttentionConfig) -> str | None:
    if getattr(site.within("rel_pos_bias"), "rel_pos_bias", None) is not None:
        return "position biases that layers share: the model would go on making them, N x N"
    return None


def _notes(site: Site, config: AttentionConfig) -> list[str]:
    host: Any = site.module
    index = host.relative_position_index
    return [] if index is None else bias_note(index.shape[0], config)


ADAPTER = Adapter(
    family="timm BEiT",
    hosts=("timm.models.beit:Attention",),
    build=lambda site, config: BeitAttention(site.module, config, prefix_tokens(site)),
    refuses=_refuses,
    notes=_notes,
    grid_source=patch_embed,
)
