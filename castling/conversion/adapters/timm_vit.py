"""timm's `Attention`: ViT, DeiT and DeiT-3, with q/k norm, an output norm, LayerScale outside, and any prefix tokens.

Rotary and gated relatives are recognised in order to be refused by name.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from castling.config import AttentionConfig
from castling.conversion.adapters.adapter import Adapter, Site, refuse_masks
from castling.conversion.converted import ConvertedAttention

ROTARY = ("timm.layers:AttentionRope", "timm.models.eva:EvaAttention")
TALKING = ("timm.models.cait:TalkingHeadAttn",)


class TimmVitAttention(ConvertedAttention):
    """In place of `timm.layers.Attention`: `forward(x, attn_mask, is_causal)` maps `(B, N, dim)` to the same."""

    qkv: nn.Module
    q_norm: nn.Module
    k_norm: nn.Module
    norm: nn.Module
    proj: nn.Linear
    proj_drop: nn.Module

    def __init__(self, host: Any, config: AttentionConfig, num_prefix_tokens: int) -> None:
        super().__init__(host, host.num_heads, config, num_prefix_tokens, host.attn_drop.p)
        self.head_dim = host.proj.in_features // host.num_heads

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """Attend among tokens."""
        refuse_masks(attn_mask=attn_mask, is_causal=is_causal)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).unbind(2)  # (B, N, H, D) each
        out = self.attend(self.q_norm(q), self.k_norm(k), v)
        return self.proj_drop(self.proj(self.norm(out.flatten(2))))

    @property
    def output_projection(self) -> nn.Linear | None:
        """The projection, unless a norm stands before it."""
        return self.proj if isinstance(self.norm, nn.Identity) else None


def prefix_tokens(site: Site) -> int:
    """Class, distillation and register tokens of the transformer around."""
    return int(getattr(site.within("num_prefix_tokens"), "num_prefix_tokens", 0))


def patch_embed(site: Site) -> nn.Module | None:
    """The patch embedding of the transformer around, if it can tell the grid of any image."""
    found = getattr(site.within("patch_embed"), "patch_embed", None)
    return found if hasattr(found, "dynamic_feat_size") else None


def _refuses(site: Site, config: AttentionConfig) -> str | None:
    kind = type(site.module).__name__
    if "Rope" in kind or "Eva" in kind:
        return "rotary position: it acts on the logits, which linear attention does not have"
    if "Talking" in kind:
        return "talking heads: they mix attention maps, which linear attention does not have"
    if getattr(site.module, "gate", None) is not None:
        return "gate on the output"
    return None


def _notes(site: Site, config: AttentionConfig) -> list[str]:
    kept = {"q_norm": "q/k norm", "norm": "output norm"}
    found = [name for part, name in kept.items() if not isinstance(getattr(site.module, part), nn.Identity)]
    return [f"{name} is kept" for name in found]


ADAPTER = Adapter(
    family="timm ViT, DeiT, DeiT-3",
    hosts=("timm.layers:Attention", *ROTARY, *TALKING),
    build=lambda site, config: TimmVitAttention(site.module, config, prefix_tokens(site)),
    refuses=_refuses,
    notes=_notes,
    grid_source=patch_embed,
)
