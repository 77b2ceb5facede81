"""Segmenters as networks of Hugging Face's transformers, to be saved, loaded and shared with its own methods.

Importing this registers our pyramid as one of its backbones, so that any `Mask2FormerConfig` can name it. What
`save_pretrained` wrote is read where this module was imported before.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import timm
from torch import Tensor, nn

import castling.models  # noqa: F401 - registers castling_*
from castling.config import AttentionConfig
from castling.conversion import is_castled
from castling.extras import import_extra
from castling.models.feature_pyramid import STRIDES, FeaturePyramid
from castling.tasks.segmentation.mask2former import describe, make_pixel_decoder
from castling.tasks.segmentation.model import Segmenter, SegmenterConfig

transformers: Any = import_extra("transformers", "segmentation")
try:
    mixins: Any = import_extra("transformers.backbone_utils", "segmentation")
except ImportError:  # before version 5
    mixins = import_extra("transformers.utils.backbone_utils", "segmentation")

STAGES = [f"stride{stride}" for stride in STRIDES]
# Where parts of a segmenter stand in transformers' Mask2Former.
PLACES = {
    "backbone.": "model.pixel_level_module.encoder.pyramid.",
    "decoder.pixel_decoder.": "model.pixel_level_module.decoder.",
    "decoder.transformer.": "model.transformer_module.",
    "decoder.class_predictor.": "class_predictor.",
}


class CastlingBackboneConfig(mixins.BackboneConfigMixin, transformers.PretrainedConfig):
    """A pyramid on a ViT, as plain values.

    Args:
        name: timm's name of the ViT, which may be ours.
        kernel: another kernel for its attention; `softmax` gives the twin. Ours only.
        attention: fields of an `AttentionConfig`. Ours only.
        options: further options of timm's `create_model`, such as `img_size`.
        dim: the width of the maps.
        **others: what all configurations of transformers have.

    Example:
        >>> CastlingBackboneConfig("castling_deit_tiny_patch16_224", kernel="softmax").to_dict()["kernel"]
        'softmax'
    """

    model_type = "castling_backbone"

    def __init__(
        self,
        name: str = "castling_deit_base_patch16_224",
        kernel: str | None = None,
        attention: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        dim: int = 256,
        **others: Any,
    ) -> None:
        for derived in ("out_features", "out_indices", "stage_names"):  # all maps are always given
            others.pop(derived, None)
        super().__init__(**others)
        self.name, self.kernel, self.dim = name, kernel, dim
        self.attention = None if attention is None else dict(attention)
        self.options = dict(options or {})
        self.stage_names = list(STAGES)
        self._out_features, self._out_indices = list(STAGES), list(range(len(STAGES)))


class CastlingBackbone(mixins.BackboneMixin, transformers.PreTrainedModel):
    """The pyramid as a backbone of transformers.

    Args:
        config: what it is made of.

    Attributes:
        pyramid: the network, a `FeaturePyramid`.

    Raises:
        ValueError: for an attention of options that it does not have, or a network that the pyramid refuses.
    """

    config_class = CastlingBackboneConfig
    main_input_name = "pixel_values"

    def __init__(self, config: CastlingBackboneConfig) -> None:
        super().__init__(config)
        if hasattr(self, "_init_backbone"):  # before version 5
            self._init_backbone(config)
        self.num_features = [config.dim] * len(STAGES)
        self.pyramid = make_pyramid(config)
        self.post_init()

    def forward(self, pixel_values: Tensor, **options: Any) -> Any:
        """Maps of images `(B, 3, H, W)` as transformers' `BackboneOutput`; options of others have no effect."""
        return transformers.modeling_outputs.BackboneOutput(feature_maps=tuple(self.pyramid(pixel_values)))

    def _init_weights(self, module: Any) -> None:
        """Initial values of weights that a folder did not have, as timm's and ours begin."""
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif hasattr(module, "reset_parameters"):
            module.reset_parameters()
        for name, tokens in module.named_parameters(recurse=False):
            if name in ("pos_embed", "cls_token", "dist_token", "reg_token"):
                nn.init.trunc_normal_(tokens, std=0.02)


class CastlingMask2FormerConfig(transformers.Mask2FormerConfig):
    """transformers' `Mask2FormerConfig` with `pixel_decoder`, one of those that a `SegmenterConfig` names."""

    model_type = "castling_mask2former"
    backbones_supported = [CastlingBackboneConfig.model_type]  # noqa: RUF012 - as transformers has it


class CastlingMask2Former(transformers.Mask2FormerForUniversalSegmentation):
    """transformers' Mask2Former with the pixel decoder that its configuration names.

    Args:
        config: a `CastlingMask2FormerConfig`; `describe_segmenter` makes one.
    """

    config_class = CastlingMask2FormerConfig

    def __init__(self, config: CastlingMask2FormerConfig) -> None:
        super().__init__(config)
        pixels = self.model.pixel_level_module
        pixels.decoder = make_pixel_decoder(config, pixels.encoder.channels)
        self.post_init()


def make_pyramid(config: CastlingBackboneConfig) -> FeaturePyramid:
    """The pyramid that a configuration describes, with new weights."""
    attention = None if config.attention is None else AttentionConfig(**config.attention)
    ours = {"kernel": config.kernel, "attention": attention}
    given = {name: value for name, value in ours.items() if value is not None}
    options = {"dynamic_img_size": True, **config.options}
    return FeaturePyramid(timm.create_model(config.name, num_classes=0, **given, **options), config.dim)


def describe_segmenter(
    config: SegmenterConfig, num_classes: int, backbone: CastlingBackboneConfig
) -> CastlingMask2FormerConfig:
    """The configuration of a segmenter with Mask2Former's decoder, for transformers.

    Args:
        config: the segmenter's.
        num_classes: the number of classes.
        backbone: what its pyramid was made of.

    Raises:
        ValueError: for the light decoder, or a pyramid of another width.
    """
    if config.decoder != "mask2former":
        raise ValueError(f"transformers has Mask2Former's decoder only; got decoder={config.decoder!r}")
    if backbone.dim != config.dim:
        raise ValueError(f"the pyramid's maps have {backbone.dim} channels, the configuration {config.dim}")
    return CastlingMask2FormerConfig(backbone_config=backbone, **describe(config, num_classes))


def to_transformers(segmenter: Segmenter, backbone: CastlingBackboneConfig) -> CastlingMask2Former:
    """A segmenter as a network of transformers, with a copy of its weights: `.save_pretrained(folder)` writes it.

    A castled one is described as castled, so that what is read again has no branch either.

    Args:
        segmenter: one with Mask2Former's decoder.
        backbone: what its pyramid was made of.

    Raises:
        ValueError: for the light decoder, or weights of another pyramid than the one described.
    """
    if is_castled(segmenter):
        backbone = copy.deepcopy(backbone)
        backbone.attention = {**(backbone.attention or {}), "aux": False}
    network = CastlingMask2Former(describe_segmenter(segmenter.config, segmenter.num_classes, backbone))
    renamed = {
        place + name[len(part) :]: tensor
        for name, tensor in segmenter.state_dict().items()
        for part, place in PLACES.items()
        if name.startswith(part)
    }
    kept = {name: tensor for name, tensor in network.state_dict().items() if name.startswith("criterion.")}
    try:
        network.load_state_dict({**kept, **renamed})
    except RuntimeError as error:
        raise ValueError(f"the segmenter's pyramid is not the one that is described: {error}") from error
    return network.train(segmenter.training)


def to_segmenter(network: CastlingMask2Former) -> Segmenter:
    """A network of transformers as a segmenter, with a copy of its weights.

    Args:
        network: what `CastlingMask2Former.from_pretrained` gave.
    """
    saved = network.config
    config = SegmenterConfig(
        decoder="mask2former",
        dim=saved.hidden_dim,
        pixel_decoder=saved.pixel_decoder,
        queries=saved.num_queries,
        layers=saved.decoder_layers - 1,
        encoder_layers=saved.encoder_layers,
        heads=saved.num_attention_heads,
        ffn_dim=saved.dim_feedforward,
        points=saved.train_num_points,
    )
    segmenter = Segmenter(make_pyramid(saved.backbone_config), config, saved.num_labels)
    segmenter.load_state_dict(
        {
            part + name[len(place) :]: tensor
            for name, tensor in network.state_dict().items()
            for part, place in PLACES.items()
            if name.startswith(place)
        }
    )
    return segmenter.train(network.training)


transformers.AutoConfig.register(CastlingBackboneConfig.model_type, CastlingBackboneConfig)
transformers.AutoBackbone.register(CastlingBackboneConfig, CastlingBackbone)
transformers.AutoConfig.register(CastlingMask2FormerConfig.model_type, CastlingMask2FormerConfig)
transformers.AutoModelForUniversalSegmentation.register(CastlingMask2FormerConfig, CastlingMask2Former)
