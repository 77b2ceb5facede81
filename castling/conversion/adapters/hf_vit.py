"""Hugging Face's ViT, DeiT, DINOv2 (with registers too) and CLIP's vision tower: attentions alike but for their names.

Up to transformers 5.8 the projections lie in two parts of the attention. DINOv3 is recognised in order to be refused by
name.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from castling.config import AttentionConfig
from castling.conversion.adapters.adapter import Adapter, Site, refuse_masks
from castling.conversion.converted import ConvertedAttention

HOSTS = (
    "transformers.models.vit.modeling_vit:ViTAttention",
    "transformers.models.deit.modeling_deit:DeiTAttention",
    "transformers.models.dinov2.modeling_dinov2:Dinov2Attention",
    "transformers.models.dinov2_with_registers.modeling_dinov2_with_registers:Dinov2WithRegistersAttention",
)
CLIP = "transformers.models.clip.modeling_clip:CLIPAttention"
ROTARY = ("transformers.models.dinov3_vit.modeling_dinov3_vit:DINOv3ViTAttention",)


class HfVitAttention(ConvertedAttention):
    """In place of `ViTAttention` and its likes: `forward(hidden_states, attention_mask)` gives tokens and no map."""

    q_proj: nn.Module
    k_proj: nn.Module
    v_proj: nn.Module
    o_proj: nn.Linear

    def __init__(self, host: Any, config: AttentionConfig, num_prefix_tokens: int) -> None:
        super().__init__(host, host.num_attention_heads, config, num_prefix_tokens, host.attention_dropout)
        self.head_dim = host.head_dim

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Attend among tokens `(B, N, dim)`; of the host's other arguments, `output_attentions` is refused if true."""
        _refuse_call(attention_mask=attention_mask, **kwargs)
        layers = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (layer(hidden_states).unflatten(-1, (self.num_heads, -1)) for layer in layers)  # (B, N, H, D) each
        return self.output_projection(self.attend(q, k, v).flatten(2)), None

    @property
    def output_projection(self) -> nn.Linear:
        """Always there."""
        return self.o_proj


class HfClipAttention(HfVitAttention):
    """In place of `CLIPAttention` in a vision tower."""

    out_proj: nn.Linear

    def __init__(self, host: Any, config: AttentionConfig, num_prefix_tokens: int) -> None:
        ConvertedAttention.__init__(self, host, host.num_heads, config, num_prefix_tokens, host.dropout)
        self.head_dim = host.head_dim

    @property
    def output_projection(self) -> nn.Linear:
        """Always there."""
        return self.out_proj


class HfNestedAttention(ConvertedAttention):
    """The same of transformers up to 5.8: `forward(hidden_states, head_mask)` gives tokens."""

    attention: nn.Module
    output: nn.Module

    def __init__(self, host: Any, config: AttentionConfig, num_prefix_tokens: int) -> None:
        inner = host.attention
        super().__init__(host, inner.num_attention_heads, config, num_prefix_tokens, inner.dropout_prob)
        self.head_dim = inner.attention_head_size

    def forward(self, hidden_states: Tensor, head_mask: Tensor | None = None, **kwargs: Any) -> Tensor:
        """Attend among tokens `(B, N, dim)`."""
        _refuse_call(head_mask=head_mask, **kwargs)
        inner: Any = self.attention
        layers = (inner.query, inner.key, inner.value)
        q, k, v = (layer(hidden_states).unflatten(-1, (self.num_heads, -1)) for layer in layers)  # (B, N, H, D) each
        return self.output(self.attend(q, k, v).flatten(2), hidden_states)

    @property
    def output_projection(self) -> nn.Linear | None:
        """Always there."""
        output: Any = self.output
        return output.dense


def _refuse_call(output_attentions: bool = False, **arguments: Any) -> None:
    masks = {name: value for name, value in arguments.items() if name.endswith("_mask")}
    if not torch.compiler.is_exporting():  # then transformers makes a mask that hides nothing, even where none is given
        refuse_masks(**masks)
    if output_attentions:
        raise ValueError("output_attentions: linear attention makes no attention maps")


def _build(site: Site, config: AttentionConfig) -> ConvertedAttention:
    kind: type[HfVitAttention | HfNestedAttention] = HfNestedAttention
    if hasattr(site.module, "q_proj"):
        kind = HfClipAttention if hasattr(site.module, "out_proj") else HfVitAttention
    return kind(site.module, config, _prefix_tokens(site))


def _prefix_tokens(site: Site) -> int:
    embeddings = getattr(site.within("embeddings"), "embeddings", None)
    tokens = [getattr(embeddings, name, None) for name in ("cls_token", "distillation_token", "register_tokens")]
    of_clip = int(getattr(embeddings, "class_embedding", None) is not None)
    return of_clip + sum(token.shape[1] for token in tokens if token is not None)


def _patch_embed(site: Site) -> nn.Module | None:
    embeddings = getattr(site.within("embeddings"), "embeddings", None)
    found = getattr(embeddings, "patch_embeddings", None)
    return found if hasattr(found, "patch_size") else None


def _refuses(site: Site, config: AttentionConfig) -> str | None:
    if "DINOv3" in type(site.module).__name__:
        return "rotary position: it acts on the logits, which linear attention does not have"
    takes = inspect.signature(type(site.module).forward).parameters
    if "output_attentions" in takes and not hasattr(site.module, "out_proj"):  # CLIP's gives as many results as ours
        return "the attention of transformers before 4.57, which gives its maps as well; update transformers"
    if hasattr(getattr(site.within("embeddings"), "embeddings", None), "token_embedding"):
        return "attention among words: it is masked, and short"
    if getattr(site.module, "is_causal", False):
        return "causal attention"
    return None


ADAPTER = Adapter(
    family="Hugging Face ViT, DeiT, DINOv2, CLIP",
    hosts=(*HOSTS, CLIP, *ROTARY),
    build=_build,
    refuses=_refuses,
    grid_source=_patch_embed,
)
