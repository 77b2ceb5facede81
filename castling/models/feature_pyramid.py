"""A plain ViT as a backbone of four scales: the simple feature pyramid of ViTDet, made of the last tokens alone.

The ADE20K table's backbone: its MACs are those of ViT-Base with this pyramid behind it.
"""

from __future__ import annotations

from collections.abc import Sequence

from timm.layers import LayerNorm2d
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

STRIDES = (4, 8, 16, 32)
PATCH = (16, 16)


class FeaturePyramid(nn.Module):
    """Tokens of a ViT at stride 16, made finer by transposed convolutions and coarser by pooling.

    Each map has the same width. The final norm of the ViT comes before all of them.

    Args:
        vit: timm's or our transformer with patches of 16 x 16, without a head (`num_classes=0`), for any image
            (`dynamic_img_size=True`, which is ours by default). A classifier's weights fit into it as they are.
        dim: the width of the maps.

    Attributes:
        channels: the widths of the maps.
        strides: pixels of a cell of each map, the finest first.

    Raises:
        ValueError: for another network, other patches, a head, or one image size only.

    Example:
        >>> import timm, torch, castling
        >>> options = {"embed_dim": 32, "depth": 1, "num_heads": 2, "num_classes": 0}
        >>> pyramid = FeaturePyramid(timm.create_model("castling_deit_tiny_patch16_224", **options), dim=8)
        >>> [tuple(x.shape) for x in pyramid(torch.zeros(2, 3, 64, 96))]
        [(2, 8, 16, 24), (2, 8, 8, 12), (2, 8, 4, 6), (2, 8, 2, 3)]
    """

    def __init__(self, vit: VisionTransformer, dim: int = 256) -> None:
        super().__init__()
        _check(vit)
        self.channels, self.strides = (dim,) * len(STRIDES), STRIDES
        width = vit.embed_dim
        self.vit = vit
        self.levels = nn.ModuleList(
            [
                nn.Sequential(
                    *(_doubled(width, width // 2), LayerNorm2d(width // 2), nn.GELU()),
                    *(_doubled(width // 2, width // 4), *_projected(width // 4, dim)),
                ),
                nn.Sequential(_doubled(width, width // 2), *_projected(width // 2, dim)),
                nn.Sequential(*_projected(width, dim)),
                nn.Sequential(nn.MaxPool2d(2), *_projected(width, dim)),
            ]
        )

    def forward(self, images: Tensor) -> list[Tensor]:
        """Maps `(B, dim, H / stride, W / stride)` of images `(B, 3, H, W)`, the finest first.

        Raises:
            ValueError: if 32 does not divide the sides of the images.
        """
        height, width = images.shape[-2:]
        check_sides(height, width)
        tokens = self.vit.forward_features(images)[:, self.vit.num_prefix_tokens :]  # (B, N, C)
        grid = (height // PATCH[0], width // PATCH[1])
        image = tokens.unflatten(1, grid).permute(0, 3, 1, 2)  # (B, C, rows, columns), channels-last strides
        return [level(image) for level in self.levels]


def check_sides(height: int, width: int) -> None:
    """Refuse images whose sides the coarsest stride does not divide.

    Raises:
        ValueError: names the nearest legal sizes.

    Example:
        >>> check_sides(500, 64)
        Traceback (most recent call last):
        ValueError: an image of 500 x 64 does not fit a stride of 32; pad it, such as to 512 x 64
    """
    step = STRIDES[-1]
    if height % step or width % step:
        above = " x ".join(str(-(-side // step) * step) for side in (height, width))
        raise ValueError(f"an image of {height} x {width} does not fit a stride of {step}; pad it, such as to {above}")


def _check(vit: VisionTransformer) -> None:
    if not isinstance(vit, VisionTransformer):
        raise ValueError(f"the pyramid stands on timm's or our VisionTransformer; got {type(vit).__name__}")
    patch = tuple(vit.patch_embed.patch_size)
    if patch != PATCH:
        raise ValueError(f"the pyramid needs patches of 16 x 16; got {patch[0]} x {patch[1]}")
    if vit.num_classes:
        raise ValueError(f"the pyramid needs no head: make the network with num_classes=0; got {vit.num_classes}")
    if not vit.dynamic_img_size:
        raise ValueError("the network takes one image size only; make it with dynamic_img_size=True")
    if vit.embed_dim % 4:
        raise ValueError(f"the width of the network is halved twice, so 4 must divide it; got {vit.embed_dim}")


def _doubled(in_dim: int, dim: int) -> nn.ConvTranspose2d:
    return nn.ConvTranspose2d(in_dim, dim, kernel_size=2, stride=2)


def _projected(in_dim: int, dim: int) -> Sequence[nn.Module]:
    """To the pyramid's width, and over neighbours."""
    return (
        nn.Conv2d(in_dim, dim, kernel_size=1, bias=False),
        LayerNorm2d(dim),
        nn.Conv2d(dim, dim, kernel_size=3, padding=1, bias=False),
        LayerNorm2d(dim),
    )
