import timm
from torch import nn

import castling.models  # noqa: F401 - registers castling_*
from castling.models.feature_pyramid import FeaturePyramid
from castling.tasks.segmentation.model import Segmenter, SegmenterConfig

SIZE = (64, 96)  # of a small picture: height and width
NAME = "castling_deit_tiny_patch16_224"
VIT = {"embed_dim": 32, "depth": 1, "num_heads": 2}
TINY = {"fpn_dim": 8, "queries": 5, "layers": 3, "encoder_layers": 1, "heads": 2, "ffn_dim": 32, "points": 64}
DECODERS = [("fpn", "encoder_fpn"), ("mask2former", "encoder_fpn"), ("mask2former", "deformable")]


def tiny_config(decoder="fpn", pixel_decoder="encoder_fpn", **options):
    dim = 8 if decoder == "fpn" else 32
    return SegmenterConfig(**{**TINY, "decoder": decoder, "pixel_decoder": pixel_decoder, "dim": dim, **options})


def tiny_segmenter(decoder="fpn", pixel_decoder="encoder_fpn", num_classes=3, vit=(), **options):
    config = tiny_config(decoder, pixel_decoder, **options)
    backbone = FeaturePyramid(timm.create_model(NAME, num_classes=0, **{**VIT, **dict(vit)}), config.dim)
    return Segmenter(backbone, config, num_classes)


def with_some_scores(segmenter):
    """Wider weights, so that what an untrained decoder says differs from place to place."""
    for parameter in segmenter.decoder.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.3)
    return segmenter.eval()
