"""The segmenter: a pyramid on a plain ViT and one of two decoders, from pictures to scores of classes at stride 4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from torch import Tensor, nn

from castling.attention.heads import autocast_off
from castling.config import check_choice
from castling.models.feature_pyramid import FeaturePyramid
from castling.tasks.segmentation.fpn import FpnDecoder

DecoderName = Literal["fpn", "mask2former"]
PixelDecoderName = Literal["encoder_fpn", "deformable"]
GROUPS = 32  # of transformers' group norms


@dataclass(frozen=True)
class SegmenterConfig:
    """The pyramid's width and what comes behind it. With `decoder="mask2former"` the rest is the ADE20K table's.

    Args:
        decoder: `fpn`, a few convolutions, or `mask2former`, which needs the extra `segmentation`.
        dim: the width of the pyramid's maps, and of Mask2Former.
        fpn_dim: the width of the light decoder. Those below are of Mask2Former alone.
        pixel_decoder: `encoder_fpn`, a transformer at stride 32 and convolutions, or `deformable`, transformers' own.
        queries: the number of masks that are predicted.
        layers: those of masked attention.
        encoder_layers: those of the pixel decoder.
        heads: the number of heads of all attentions.
        ffn_dim: hidden channels of MLPs; half of them in deformable attention.
        points: the number of points of a mask at which losses are taken.

    Raises:
        ValueError: names the bad value and the legal ones.

    Example:
        >>> SegmenterConfig(decoder="mask2fomer")
        Traceback (most recent call last):
        ValueError: unknown decoder 'mask2fomer': did you mean 'mask2former'? Legal: 'fpn', 'mask2former'
    """

    decoder: DecoderName = "fpn"
    dim: int = 256
    fpn_dim: int = 64
    pixel_decoder: PixelDecoderName = "encoder_fpn"
    queries: int = 100
    layers: int = 9
    encoder_layers: int = 6
    heads: int = 8
    ffn_dim: int = 2048
    points: int = 12544

    def __post_init__(self) -> None:
        check_choice("decoder", self.decoder, get_args(DecoderName))
        check_choice("pixel_decoder", self.pixel_decoder, get_args(PixelDecoderName))
        for name in ("dim", "fpn_dim", "queries", "layers", "encoder_layers", "heads", "points"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")
        if self.ffn_dim < 2:
            raise ValueError(f"ffn_dim must be at least 2; got {self.ffn_dim}")
        if self.decoder == "mask2former" and (self.dim % GROUPS or self.dim % self.heads):
            raise ValueError(
                f"dim must be a multiple of {GROUPS}, for norms, and of heads; got dim={self.dim}, heads={self.heads}"
            )


class Segmenter(nn.Module):
    """Sees classes in pictures of any size that 32 divides.

    Args:
        backbone: the pyramid, of the configuration's width.
        config: the decoder.
        num_classes: the number of classes.

    Raises:
        ImportError: if the decoder is Mask2Former's and transformers is missing.
        ValueError: if the pyramid has another width, or there are no classes.

    Example:
        >>> import timm, torch, castling
        >>> options = {"embed_dim": 32, "depth": 1, "num_heads": 2, "num_classes": 0}
        >>> pyramid = FeaturePyramid(timm.create_model("castling_deit_tiny_patch16_224", **options), dim=8)
        >>> segmenter = Segmenter(pyramid, SegmenterConfig(dim=8, fpn_dim=8), num_classes=3).eval()
        >>> segmenter(torch.zeros(2, 3, 64, 96)).shape
        torch.Size([2, 3, 16, 24])
    """

    def __init__(self, backbone: FeaturePyramid, config: SegmenterConfig, num_classes: int) -> None:
        super().__init__()
        if set(backbone.channels) != {config.dim}:
            raise ValueError(f"the pyramid's maps have {backbone.channels[0]} channels, the configuration {config.dim}")
        if num_classes < 1:
            raise ValueError(f"num_classes must be at least 1; got {num_classes}")
        self.config, self.num_classes = config, num_classes
        self.backbone = backbone
        self.decoder: Any
        if config.decoder == "fpn":
            self.decoder = FpnDecoder(backbone.channels, config.fpn_dim, num_classes)
        else:
            from castling.tasks.segmentation.mask2former import make_decoder  # needs transformers

            self.decoder = make_decoder(config, backbone.channels, num_classes)

    def forward(self, images: Tensor) -> Tensor | dict[str, Tensor] | dict[str, list[Tensor]]:
        """Look at pictures `(B, 3, H, W)`.

        Returns:
            In evaluation, scores of classes `(B, classes, H / 4, W / 4)`: logits of the light decoder; of Mask2Former
            the sum over queries of the class's probability times the mask's. In training what the losses need:
            `logits`, those of the light decoder; of Mask2Former `class_logits` `(B, Q, classes + 1)` and `mask_logits`
            `(B, Q, H / 4, W / 4)`, lists with the predictions of all layers, the last one being the network's. All are
            float32.

        Raises:
            ValueError: if 32 does not divide the sides of the pictures.
        """
        maps = self.backbone(images)
        if self.config.decoder == "fpn":
            logits = self.decoder(maps).float()
            return {"logits": logits} if self.training else logits
        classes, masks = self.decoder(maps)
        if self.training:
            return {"class_logits": [x.float() for x in classes], "mask_logits": [x.float() for x in masks]}
        return semantic_scores(classes[-1].float(), masks[-1].float())


def semantic_scores(class_logits: Tensor, mask_logits: Tensor) -> Tensor:
    """Scores of classes at each place (MaskFormer, section 3.4): who is there, times what it is.

    Args:
        class_logits: `(B, Q, classes + 1)`, the last class being none.
        mask_logits: `(B, Q, H, W)`.

    Returns:
        `(B, classes, H, W)`.
    """
    with autocast_off(mask_logits):
        classes, masks = class_logits.softmax(-1)[..., :-1], mask_logits.sigmoid()
        return (classes.mT @ masks.flatten(2)).unflatten(2, masks.shape[-2:])
