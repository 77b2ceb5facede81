"""Castling-DeiT: timm's VisionTransformer with our attention and a depthwise convolution in its MLPs.

The rows Castling-DeiT-T and -B of the ImageNet table, and DeiT with other patch sizes for the patch-size study.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from timm.layers import PatchEmbed, register_notrace_module
from timm.models import build_model_with_cfg, generate_default_cfgs, named_apply, register_model
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn, get_init_weights_vit
from torch import Tensor

from castling.attention import CastlingAttention, Mlp
from castling.attention.grid import GridNote
from castling.config import AttentionConfig
from castling.models.input_size import check_image_size
from castling.models.pretrained import default_cfg

UNSUPPORTED = ("qk_norm", "scale_attn_norm", "scale_mlp_norm", "attn_layer", "mlp_layer", "block_fn", "embed_layer")


@register_notrace_module  # in the graphs of torch.fx it is one node, which notes the grid of the image at hand
class NotingPatchEmbed(PatchEmbed):
    """timm's patch embedding, which notes the grid for those who need it: timm's blocks pass tokens on without it.

    Attributes:
        grid_note: place of the grid of the last image.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.grid_note = GridNote()

    def forward(self, x: Tensor) -> Tensor:
        """Patches of an image `(B, 3, H, W)`.

        Raises:
            ValueError: if patches of this size do not fill the image, unless it is padded.
        """
        size = (x.shape[-2], x.shape[-1])
        if not self.dynamic_img_pad:
            check_image_size(size, self.patch_size)
        self.grid_note.grid, self.grid_note.visible = self.dynamic_feat_size(size), None
        return super().forward(x)


class CastlingVisionTransformer(VisionTransformer):
    """timm's VisionTransformer with other blocks, for any image whose sides are multiples of the patch size.

    Args:
        *args: arguments of timm's transformer.
        attention: options of the attention, as plain values too; the authors' block where None.
        kernel: another kernel for it; `softmax` gives the baseline twin of the same network.
        mlp_conv_size: taps per axis of the convolution in the MLPs; 0 for none.
        **kwargs: arguments of timm's transformer.

    Raises:
        ValueError: for arguments of timm's that would change the attention or the MLPs in ways ours do not know.
    """

    def __init__(
        self,
        *args: Any,
        attention: AttentionConfig | Mapping[str, Any] | None = None,
        kernel: str | None = None,
        mlp_conv_size: int = 5,
        **kwargs: Any,
    ) -> None:
        unknown = [name for name in UNSUPPORTED if kwargs.get(name)]
        if unknown:
            raise ValueError(f"a Castling transformer does not take {', '.join(unknown)}: it has layers of its own")
        kwargs.setdefault("dynamic_img_size", True)  # position embeddings are resampled where an image needs it
        super().__init__(*args, embed_layer=NotingPatchEmbed, **kwargs)
        config = AttentionConfig.of(attention).with_kernel(kernel)
        for block in self.blocks:
            block.attn = _castling_attention(block.attn, config, self.num_prefix_tokens)
            block.mlp = _castling_mlp(block.mlp, mlp_conv_size, self.num_prefix_tokens)
            block.attn.grid_note = block.mlp.grid_note = self.patch_embed.grid_note
            named_apply(get_init_weights_vit(kwargs.get("weight_init", "")), block)


class CastlingVisionTransformerDistilled(CastlingVisionTransformer, VisionTransformerDistilled):
    """The same with DeiT's distillation token and second head."""


def _castling_attention(host: Any, config: AttentionConfig, num_prefix_tokens: int) -> CastlingAttention:
    return CastlingAttention(
        host.qkv.in_features,
        host.num_heads,
        host.qkv.bias is not None,
        config,
        num_prefix_tokens=num_prefix_tokens,
        attn_drop=host.attn_drop.p,
        proj_drop=host.proj_drop.p,
    )


def _castling_mlp(host: Any, conv_size: int, num_prefix_tokens: int) -> Mlp:
    features = host.fc1.in_features, host.fc1.out_features
    return Mlp(*features, type(host.act), host.drop1.p, conv_size, num_prefix_tokens)


def _create(variant: str, pretrained: bool, distilled: bool = False, **kwargs: Any) -> CastlingVisionTransformer:
    return build_model_with_cfg(
        CastlingVisionTransformerDistilled if distilled else CastlingVisionTransformer,
        variant,
        pretrained,
        pretrained_filter_fn=partial(checkpoint_filter_fn, adapt_layer_scale=True),
        feature_cfg={"out_indices": kwargs.pop("out_indices", 3), "feature_cls": "getter"},
        **{**SIZES[variant], **kwargs},
    )


SIZES = {
    "castling_deit_tiny_patch16_224": {"embed_dim": 192, "num_heads": 3},
    "castling_deit_small_patch16_224": {"embed_dim": 384, "num_heads": 6},
    "castling_deit_base_patch16_224": {"embed_dim": 768, "num_heads": 12},
}

default_cfgs = generate_default_cfgs(
    {name: default_cfg(first_conv="patch_embed.proj", classifier="head") for name in SIZES}
)


@register_model
def castling_deit_tiny_patch16_224(pretrained: bool = False, **kwargs: Any) -> CastlingVisionTransformer:
    """Castling-DeiT-T; `patch_size`, `img_size`, `distilled`, `kernel` and timm's arguments as keywords."""
    return _create("castling_deit_tiny_patch16_224", pretrained, **kwargs)


@register_model
def castling_deit_small_patch16_224(pretrained: bool = False, **kwargs: Any) -> CastlingVisionTransformer:
    """Castling-DeiT-S, which the paper does not list."""
    return _create("castling_deit_small_patch16_224", pretrained, **kwargs)


@register_model
def castling_deit_base_patch16_224(pretrained: bool = False, **kwargs: Any) -> CastlingVisionTransformer:
    """Castling-DeiT-B."""
    return _create("castling_deit_base_patch16_224", pretrained, **kwargs)
