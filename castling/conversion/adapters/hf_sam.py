"""Hugging Face's SAM: attention on a map, within windows or over all of it, with relative positions on the logits."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from castling.config import AttentionConfig
from castling.conversion.adapters.adapter import Adapter, Site, bias_note
from castling.conversion.converted import ConvertedAttention


class SamAttention(ConvertedAttention):
    """In place of `SamVisionAttention`: maps `(B, rows, columns, dim)` to the same, and gives no attention map."""

    qkv: nn.Module
    proj: nn.Linear
    rel_pos_h: Tensor
    rel_pos_w: Tensor

    def __init__(self, host: Any, config: AttentionConfig) -> None:
        super().__init__(host, host.num_attention_heads, config, 0, host.dropout)
        self.head_dim = host.proj.in_features // host.num_attention_heads
        self.has_positions = host.use_rel_pos
        self.relative_positions = host.get_rel_pos

    def forward(self, hidden_states: Tensor, output_attentions: bool | None = None) -> tuple[Tensor, None]:
        """Attend among the tokens of a map."""
        if output_attentions:
            raise ValueError("output_attentions: linear attention makes no attention maps")
        grid = (hidden_states.shape[1], hidden_states.shape[2])
        tokens = self.qkv(hidden_states).flatten(1, 2)
        q, k, v = tokens.unflatten(-1, (3, self.num_heads, -1)).unbind(2)  # (B, N, H, D) each
        bias = (lambda: self._bias(q, grid)) if self.has_positions else None
        out = self.attend(q, k, v, grid, bias).flatten(2)
        return self.proj(out).unflatten(1, grid), None

    def _bias(self, q: Tensor, grid: tuple[int, int]) -> Tensor:
        """What relative positions add to the logits `(B, H, N, N)`: by rows and by columns, of each query."""
        rows, columns = (
            self.relative_positions(side, side, positions).to(q.dtype)  # (side, side, D)
            for side, positions in zip(grid, (self.rel_pos_h, self.rel_pos_w), strict=True)
        )
        queries = q.unflatten(1, grid)  # (B, rows, columns, H, D)
        by_row = (queries.movedim(3, 1).unsqueeze(-2) * rows[:, None]).sum(-1)  # (B, H, rows, columns, rows)
        by_column = (queries.movedim(3, 1).unsqueeze(-2) * columns).sum(-1)  # (B, H, rows, columns, columns)
        return (by_row.unsqueeze(-1) + by_column.unsqueeze(-2)).flatten(4).flatten(2, 3)

    @property
    def output_projection(self) -> nn.Linear | None:
        """Always there."""
        return self.proj


def _notes(site: Site, config: AttentionConfig) -> list[str]:
    host: Any = site.module
    if not host.use_rel_pos:
        return []
    rows, columns = ((len(positions) + 1) // 2 for positions in (host.rel_pos_h, host.rel_pos_w))
    return bias_note(rows * columns, config)


ADAPTER = Adapter(
    family="Hugging Face SAM",
    hosts=(
        "transformers.models.sam.modeling_sam:SamVisionSdpaAttention",
        "transformers.models.sam.modeling_sam:SamVisionAttention",
    ),
    build=lambda site, config: SamAttention(site.module, config),
    notes=_notes,
)
