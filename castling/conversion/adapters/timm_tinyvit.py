"""timm's TinyViT: attention within windows, with its own norm in front and position biases on the logits."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from castling.config import AttentionConfig
from castling.conversion.adapters.adapter import Adapter, Site, bias_note
from castling.conversion.converted import ConvertedAttention


class TinyVitAttention(ConvertedAttention):
    """In place of `timm.models.tiny_vit.Attention`: maps the tokens `(B, N, dim)` of windows to the same."""

    norm: nn.Module
    qkv: nn.Module
    proj: nn.Linear
    attention_biases: Tensor
    attention_bias_idxs: Tensor

    def __init__(self, host: Any, config: AttentionConfig) -> None:
        super().__init__(host, host.num_heads, config)
        self.head_dim = host.val_dim
        self.widths = [host.key_dim, host.key_dim, host.val_dim]
        self.window = host.resolution

    def forward(self, x: Tensor) -> Tensor:
        """Attend within each window."""
        heads = self.qkv(self.norm(x)).unflatten(-1, (self.num_heads, -1))
        q, k, v = heads.split(self.widths, dim=-1)  # (B, N, H, D) each
        return self.proj(self.attend(q, k, v, self.window, self._bias).flatten(2))

    def _bias(self) -> Tensor:
        return self.attention_biases[:, self.attention_bias_idxs]  # (H, N, N)

    @property
    def output_projection(self) -> nn.Linear | None:
        """Always there."""
        return self.proj

    def clear_cache(self, host: Any) -> None:
        """Drop the biases of the last pass: with gradients on they cannot be copied, and training makes them wrong."""
        host.attention_bias_cache = {}


def _notes(site: Site, config: AttentionConfig) -> list[str]:
    host: Any = site.module
    rows, columns = host.resolution
    return [f"windows of {rows} x {columns} tokens", *bias_note(rows * columns, config)]


ADAPTER = Adapter(
    family="timm TinyViT",
    hosts=("timm.models.tiny_vit:Attention",),
    build=lambda site, config: TinyVitAttention(site.module, config),
    notes=_notes,
)
