"""PicoDet's heads: for each cell of a map the probability of every class, and the distributions of four distances.

Every level has weights of its own; classes and boxes share one tower of convolutions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from castling.config import check_choice
from castling.tasks.detection.neck import conv_norm_act, depthwise_separable

PRIOR_LOGIT = math.log(0.01 / 0.99)  # untrained, a class is given the probability 0.01
EPS = 1e-9  # the square root has no gradient at 0


class AlignedHead(nn.Module):
    """The head of one level, version 2: a class must be likely and its box aligned.

    Args:
        dim: the width of the map.
        num_classes: the number of classes.
        num_convs: the length of the tower.
        reg_max: the largest distance, in strides.
        kernel_size: the side of depthwise filters and of the alignment's.
    """

    def __init__(self, dim: int, num_classes: int, num_convs: int, reg_max: int, kernel_size: int) -> None:
        super().__init__()
        self.tower = _tower(dim, num_convs, kernel_size)
        self.excite = _layer(dim, dim, std=0.001)
        self.mix = _small(conv_norm_act(dim, dim))
        self.classes = _layer(dim, num_classes, bias=PRIOR_LOGIT)
        self.distances = _layer(dim, 4 * (reg_max + 1))
        self.align = nn.Sequential(conv_norm_act(dim, 1, kernel_size), conv_norm_act(1, 1, act=False))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map `(B, dim, H, W)` to probabilities `(B, classes, H, W)` and logits `(B, 4 (reg_max + 1), H, W)`."""
        x = self.tower(x)
        aligned = self.align(x).float().sigmoid()
        x = self.mix(x * self.excite(x.mean((2, 3), keepdim=True)).sigmoid())
        scores = (self.classes(x).float().sigmoid() * aligned + EPS).sqrt()
        return scores, self.distances(x).float()


class PlainHead(nn.Module):
    """The head of one level, version 1: one layer gives classes and distances. Arguments as for `AlignedHead`."""

    def __init__(self, dim: int, num_classes: int, num_convs: int, reg_max: int, kernel_size: int) -> None:
        super().__init__()
        self.tower = _tower(dim, num_convs, kernel_size)
        self.num_classes = num_classes
        self.outputs = _layer(
            dim, num_classes + 4 * (reg_max + 1), bias=PRIOR_LOGIT
        )  # equal biases change no distribution

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map `(B, dim, H, W)` to probabilities `(B, classes, H, W)` and logits `(B, 4 (reg_max + 1), H, W)`."""
        outputs = self.outputs(self.tower(x)).float()
        return outputs[:, : self.num_classes].sigmoid(), outputs[:, self.num_classes :]


HEADS: dict[str, type[AlignedHead] | type[PlainHead]] = {"v2": AlignedHead, "v1": PlainHead}


class Head(nn.Module):
    """A head for each level, their outputs one after the other.

    Args:
        kind: a name in `HEADS`.
        num_levels: the number of maps.
        dim: their width.
        num_classes: the number of classes.
        num_convs: the length of the towers.
        reg_max: the largest distance, in strides.
        kernel_size: the side of depthwise filters.

    Example:
        >>> head = Head("v2", 2, 8, num_classes=3, num_convs=1).eval()
        >>> scores, distributions = head([torch.zeros(1, 8, 4, 6), torch.zeros(1, 8, 2, 3)])
        >>> tuple(scores.shape), tuple(distributions.shape)
        ((1, 30, 3), (1, 30, 4, 8))
    """

    def __init__(
        self,
        kind: str,
        num_levels: int,
        dim: int,
        num_classes: int,
        num_convs: int,
        reg_max: int = 7,
        kernel_size: int = 5,
    ) -> None:
        super().__init__()
        check_choice("head", kind, HEADS)
        make = HEADS[kind]
        self.levels = nn.ModuleList(make(dim, num_classes, num_convs, reg_max, kernel_size) for _ in range(num_levels))

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Map `(B, dim, H, W)` of every level to probabilities `(B, A, classes)` and logits `(B, A, 4, reg_max + 1)`.

        Both are float32, whatever the precision of the layers.
        """
        scores, logits = zip(*(level(x) for level, x in zip(self.levels, maps, strict=True)), strict=True)
        return _cells(scores), _cells(logits).unflatten(-1, (4, -1))


def _tower(dim: int, num_convs: int, kernel_size: int) -> nn.Sequential:
    return _small(nn.Sequential(*(depthwise_separable(dim, dim, kernel_size) for _ in range(num_convs))))


def _small(layers: nn.Sequential) -> nn.Sequential:
    """The same layers with small weights."""
    for layer in layers.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.normal_(layer.weight, std=0.01)
    return layers


def _layer(dim: int, num_outputs: int, std: float = 0.01, bias: float = 0.0) -> nn.Conv2d:
    layer = nn.Conv2d(dim, num_outputs, 1)
    nn.init.normal_(layer.weight, std=std)
    assert layer.bias is not None
    nn.init.constant_(layer.bias, bias)
    return layer


def _cells(maps: Sequence[Tensor]) -> Tensor:
    """Maps `(B, C, H, W)` as one sequence of cells `(B, A, C)`."""
    return torch.cat([x.flatten(2) for x in maps], dim=2).transpose(1, 2)
