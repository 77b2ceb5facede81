"""Convolutional networks whose last blocks are transformers: the block, and what timm asks of such a network.

LCNet-ViT and ESNet-ViT are stages of different blocks under it. Maps are tokens in channels-last order, so that between
convolutions and attention nothing moves in memory once a map is in that order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from timm.layers import DropPath
from timm.models import named_apply
from timm.models._efficientnet_builder import efficientnet_init_weights
from timm.models._features import feature_take_indices
from timm.models.vision_transformer import get_init_weights_vit
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from castling.attention import CastlingAttention, Mlp
from castling.config import AttentionConfig

HEAD_WIDTH = 1280


class MapTransformer(nn.Module):
    """A pre-norm transformer block whose tokens are the places of a map; no position embedding and no class token.

    Args:
        dim: channels of the map.
        num_heads: heads; must divide `dim`.
        config: options of the attention; the authors' block where None.
        mlp_conv_size: taps per axis of the convolution in the MLP; 0 for none.
        drop_path: stochastic depth.

    Example:
        >>> MapTransformer(64, num_heads=2, mlp_conv_size=5)(torch.randn(2, 64, 6, 8)).shape
        torch.Size([2, 64, 6, 8])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        config: AttentionConfig | None = None,
        mlp_conv_size: int = 0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(dim, eps=1e-6) for _ in range(2))
        self.attn: nn.Module = CastlingAttention(dim, num_heads, qkv_bias=True, config=config)
        self.mlp = Mlp(dim, 2 * dim, conv_size=mlp_conv_size)
        self.drop_path1, self.drop_path2 = (DropPath(drop_path) if drop_path else nn.Identity() for _ in range(2))
        named_apply(get_init_weights_vit(""), self)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, dim, H, W)` to the same, in channels-last order."""
        grid = (x.shape[2], x.shape[3])
        tokens = x.flatten(2).transpose(1, 2).contiguous()  # (B, N, dim); a view of a map in channels-last order
        tokens = tokens + self.drop_path1(self.attn(self.norm1(tokens), grid=grid))
        tokens = tokens + self.drop_path2(self.mlp(self.norm2(tokens), grid=grid))
        return tokens.transpose(1, 2).unflatten(-1, grid)


def transformer_config(
    transformer: bool, attention: AttentionConfig | Mapping[str, Any] | None, kernel: str | None
) -> AttentionConfig:
    """Options of the attention, with another kernel where one is named.

    Raises:
        ValueError: if options are given although there are no transformers.
    """
    if not transformer and (attention is not None or kernel is not None):
        raise ValueError(f"transformer=False has no attention; got attention={attention}, kernel={kernel!r}")
    return AttentionConfig.of(attention).with_kernel(kernel)


class HybridNet(nn.Module):
    """Five stages, each of which halves the map, then LCNet's head: pool, 1 x 1 convolution, hardswish, classifier.

    Args:
        stages: blocks of the stages; the first is the stem.
        channels: channels behind each stage.
        num_classes: outputs; 0 for none.
        in_chans: channels of the image.
        global_pool: `avg`, or nothing.
        drop_rate: dropout before the classifier.
    """

    def __init__(
        self,
        stages: Sequence[Sequence[nn.Module]],
        channels: Sequence[int],
        num_classes: int,
        in_chans: int,
        global_pool: str,
        drop_rate: float,
    ) -> None:
        super().__init__()
        self.num_classes, self.in_chans, self.global_pool = num_classes, in_chans, global_pool
        self.num_features, self.head_hidden_size = channels[-1], HEAD_WIDTH
        self.grad_checkpointing = False
        self.stages = nn.ModuleList(nn.Sequential(*blocks) for blocks in stages)
        self.feature_info: list[dict[str, Any]] = [
            {"num_chs": width, "reduction": 2 ** (i + 1), "module": f"stages.{i}"} for i, width in enumerate(channels)
        ]
        self.conv_head: nn.Module = nn.Conv2d(channels[-1], HEAD_WIDTH, 1)
        self.act_head: nn.Module = nn.Hardswish()
        self.head_drop = nn.Dropout(drop_rate)
        convolutions = (block for blocks in stages for block in blocks if not isinstance(block, MapTransformer))
        for module in (*convolutions, self.conv_head):
            efficientnet_init_weights(module)
        self.reset_classifier(num_classes)

    def get_classifier(self) -> nn.Module:
        """The classifier."""
        return self.classifier

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the classifier; 0 classes remove it."""
        self.num_classes = num_classes
        self.global_pool = self.global_pool if global_pool is None else global_pool
        classifier = nn.Linear(self.head_hidden_size, num_classes) if num_classes else nn.Identity()
        efficientnet_init_weights(classifier)
        self.classifier = classifier.to(next(self.parameters())).train(self.training)  # its device and dtype

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Trade time for memory while training."""
        self.grad_checkpointing = enable

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Parameter groups from input to output, for layer-wise learning rates."""
        return {"stem": r"^stages\.0", "blocks": r"^stages\.(\d+)" if coarse else r"^stages\.(\d+)\.(\d+)"}

    def _through(self, stage: nn.Module, x: Tensor) -> Tensor:
        if self.grad_checkpointing and torch.is_grad_enabled() and not torch.compiler.is_exporting():
            return checkpoint(stage, x, use_reentrant=False)
        return stage(x)

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """Features of several stages `(B, C, H, W)`, as in timm."""
        if output_fmt != "NCHW":
            raise ValueError(f"unknown output_fmt {output_fmt!r}; legal: 'NCHW'")
        take, last = feature_take_indices(len(self.stages), indices)
        features = []
        for i, stage in enumerate(self.stages[: last + 1] if stop_early else self.stages):
            x = self._through(stage, x)
            if i in take:
                features.append(x)
        return features if intermediates_only else (x, features)

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drop the stages that these features do not need, and the head."""
        take, last = feature_take_indices(len(self.stages), indices)
        self.stages = self.stages[: last + 1]
        if prune_head:
            self.conv_head, self.act_head = nn.Identity(), nn.Identity()
            self.num_features = self.head_hidden_size = self.feature_info[last]["num_chs"]
            self.reset_classifier(0, "")
        return take

    def forward_features(self, x: Tensor) -> Tensor:
        """The last map `(B, C, H / 32, W / 32)` of an image `(B, 3, H, W)`."""
        for stage in self.stages:
            x = self._through(stage, x)
        return x

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Pool a map and classify."""
        if self.global_pool == "avg":
            x = x.mean((2, 3), keepdim=True)
        x = self.act_head(self.conv_head(x))
        x = self.head_drop(x.flatten(1) if self.global_pool == "avg" else x)
        return x if pre_logits else self.classifier(x)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of an image `(B, 3, H, W)`."""
        return self.forward_head(self.forward_features(x))
