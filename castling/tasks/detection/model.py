"""The detector: backbone, neck and head (PicoDet), from pictures to scores of all classes and a box at every point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from castling.config import check_choice, check_odd
from castling.tasks.detection.boxes import STRIDES, decode, mean_distances, points_of
from castling.tasks.detection.head import HEADS, Head
from castling.tasks.detection.neck import NECKS, PathAggregation

NeckName = Literal["lcpan", "csppan"]
HeadName = Literal["v2", "v1"]


@dataclass(frozen=True)
class DetectorConfig:
    """What comes behind the backbone. The defaults are PicoDet-S.

    Args:
        neck: `lcpan` or `csppan`.
        neck_dim: the width of neck and head.
        head: `v2`, with excitation and an alignment branch, or `v1`, without.
        head_convs: the length of the head's towers.
        reg_max: the largest distance of a point to a side of its box, in strides.
        kernel_size: the side of depthwise filters.

    Raises:
        ValueError: names the bad value and the legal ones.

    Example:
        >>> DetectorConfig(neck="lcpn")
        Traceback (most recent call last):
        ValueError: unknown neck 'lcpn': did you mean 'lcpan'? Legal: 'lcpan', 'csppan'
    """

    neck: NeckName = "lcpan"
    neck_dim: int = 96
    head: HeadName = "v2"
    head_convs: int = 2
    reg_max: int = 7
    kernel_size: int = 5

    def __post_init__(self) -> None:
        check_choice("neck", self.neck, NECKS)
        check_choice("head", self.head, HEADS)
        check_odd("kernel_size", self.kernel_size)
        if self.neck_dim < 2 or self.neck_dim % 2:
            raise ValueError(f"neck_dim must be even and positive, as nodes halve it; got {self.neck_dim}")
        if self.head_convs < 0:
            raise ValueError(f"head_convs must be at least 0; got {self.head_convs}")
        if self.reg_max < 1:
            raise ValueError(f"reg_max must be at least 1; got {self.reg_max}")


class Detector(nn.Module):
    """Sees objects in pictures of any size that 32 divides.

    Args:
        backbone: a network that gives a list of three maps at strides 8, 16 and 32, with a `feature_info` that knows
            their widths, such as those of timm with `features_only=True, out_indices=...`.
        config: neck and head.
        num_classes: the number of classes.

    Raises:
        ValueError: if the backbone gives maps of other strides, or there are no classes.

    Example:
        >>> import timm, torch
        >>> backbone = timm.create_model("test_resnet", features_only=True, out_indices=(2, 3, 4))
        >>> detector = Detector(backbone, DetectorConfig(neck_dim=8, head_convs=1), num_classes=3).eval()
        >>> {name: tuple(x.shape) for name, x in detector(torch.zeros(2, 3, 96, 64)).items()}
        {'scores': (2, 128, 3), 'boxes': (2, 128, 4)}
    """

    def __init__(self, backbone: nn.Module, config: DetectorConfig, num_classes: int) -> None:
        super().__init__()
        info: Any = backbone.feature_info
        if list(info.reduction()) != list(STRIDES[:3]):
            raise ValueError(f"the backbone must give maps at strides {STRIDES[:3]}; got {tuple(info.reduction())}")
        if num_classes < 1:
            raise ValueError(f"num_classes must be at least 1; got {num_classes}")
        dim, size = config.neck_dim, config.kernel_size
        self.config, self.num_classes = config, num_classes
        self.backbone = backbone
        self.neck = PathAggregation(config.neck, info.channels(), dim, size)
        self.head = Head(config.head, len(STRIDES), dim, num_classes, config.head_convs, config.reg_max, size)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Look at pictures `(B, 3, H, W)`.

        Returns:
            `scores` `(B, A, classes)`, probabilities, and `boxes` `(B, A, 4)` in pixels of the input. In training also
            what the losses need: `distributions` `(B, A, 4, reg_max + 1)`, logits; `points` `(A, 2)` and `strides`
            `(A,)`. All are float32.
        """
        maps = self.neck(self.backbone(images))
        scores, distributions = self.head(maps)
        points, strides = points_of([(x.shape[2], x.shape[3]) for x in maps], STRIDES, scores.device)
        outputs = {"scores": scores, "boxes": decode(mean_distances(distributions), points, strides)}
        if self.training:
            outputs |= {"distributions": distributions, "points": points, "strides": strides}
        return outputs
