"""Mask2Former's decoder behind any pyramid, made of transformers' parts: queries look at the maps and become masks.

The pixel decoder is transformers' own (multi-scale deformable attention) or `EncoderFpn`. Import this module only where
it is used: it needs transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from castling.extras import import_extra
from castling.tasks.segmentation.pixel_decoder import EncoderFpn

if TYPE_CHECKING:
    from castling.tasks.segmentation.model import SegmenterConfig

modeling: Any = import_extra("transformers.models.mask2former.modeling_mask2former", "segmentation")


def describe(config: SegmenterConfig, num_classes: int) -> dict[str, Any]:
    """What transformers' `Mask2FormerConfig` is to be made with."""
    return {
        "num_labels": num_classes,
        "pixel_decoder": config.pixel_decoder,
        "feature_size": config.dim,
        "mask_feature_size": config.dim,
        "hidden_dim": config.dim,
        "num_queries": config.queries,
        "decoder_layers": config.layers + 1,  # transformers counts the predictions
        "num_attention_heads": config.heads,
        "dim_feedforward": config.ffn_dim,
        "encoder_layers": config.encoder_layers,
        "encoder_feedforward_dim": config.ffn_dim // 2,  # of deformable attention, as in Mask2Former
        "train_num_points": config.points,
    }


def make_pixel_decoder(config: Any, channels: Sequence[int]) -> nn.Module:
    """The pixel decoder that a configuration of transformers names; its own where it names none.

    Args:
        config: a `Mask2FormerConfig`.
        channels: the widths of the maps, the finest first.
    """
    if getattr(config, "pixel_decoder", "deformable") == "deformable":
        decoder: Any = modeling.Mask2FormerPixelDecoder(config, feature_channels=list(channels))
        decoder.encoder.get_reference_points = reference_points
        return cast(nn.Module, decoder)
    return EncoderFpn(
        channels, config.feature_size, config.encoder_layers, config.num_attention_heads, config.dim_feedforward
    )


def reference_points(sizes: Sequence[Sequence[int]], valid_ratios: Tensor, device: torch.device) -> Tensor:
    """In place of transformers' `get_reference_points`, whose `linspace` makes sizes constants of an exported graph.

    Args:
        sizes: rows and columns of each map.
        valid_ratios: `(B, L, 2)`: the share of each map's columns and rows that are picture.
        device: where they are wanted.

    Returns:
        Where each place of the maps is in each of them, x and y from 0 to 1, `(B, places, L, 2)`.

    Example:
        >>> reference_points([(1, 2)], torch.ones(1, 1, 2), torch.device("cpu")).tolist()
        [[[[0.25, 0.5]], [[0.75, 0.5]]]]
    """
    places = []
    for level, (height, width) in enumerate(sizes):
        y, x = ((torch.arange(n, dtype=valid_ratios.dtype, device=device) + 0.5) / n for n in (height, width))
        grid = torch.stack([x.expand(height, width), y[:, None].expand(height, width)], -1)
        places.append(grid.flatten(0, 1) / valid_ratios[:, None, level])
    return torch.cat(places, 1)[:, :, None] * valid_ratios[:, None]


class Mask2FormerDecoder(modeling.Mask2FormerPreTrainedModel):
    """From maps to classes and masks of queries; weights begin as transformers begins them.

    Args:
        config: a `Mask2FormerConfig` of transformers.
        channels: the widths of the maps, the finest first.

    Attributes:
        pixel_decoder: makes maps of one width, and the masks' features.
        transformer: queries and masked attention.
        class_predictor: the layer from queries to classes, the last one being none.
    """

    def __init__(self, config: Any, channels: Sequence[int]) -> None:
        super().__init__(config)
        self.pixel_decoder = make_pixel_decoder(config, channels)
        self.transformer = modeling.Mask2FormerTransformerModule(in_features=config.feature_size, config=config)
        self.class_predictor = nn.Linear(config.hidden_dim, config.num_labels + 1)
        self.post_init()

    def forward(self, maps: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Predict from maps `(B, C, H, W)`, the finest first.

        Returns:
            Logits of classes `(B, Q, classes + 1)` and of masks `(B, Q, H, W)`: before the first layer and after
            each, so that the last is the best.
        """
        pixels = self.pixel_decoder(maps, output_hidden_states=False)
        found = self.transformer(
            multi_scale_features=pixels.multi_scale_features,
            mask_features=pixels.mask_features,
            output_hidden_states=True,
            output_attentions=False,
        )
        classes = [self.class_predictor(queries.transpose(0, 1)) for queries in found.intermediate_hidden_states]
        return classes, list(found.masks_queries_logits)


def make_decoder(config: SegmenterConfig, channels: Sequence[int], num_classes: int) -> Mask2FormerDecoder:
    """The decoder of a segmenter.

    Args:
        config: the segmenter's.
        channels: the widths of the maps, the finest first.
        num_classes: the number of classes.
    """
    return Mask2FormerDecoder(modeling.Mask2FormerConfig(**describe(config, num_classes)), channels)
