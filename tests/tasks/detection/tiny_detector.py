from types import SimpleNamespace

import torch
from torch import nn

from castling.tasks.detection.boxes import points_of
from castling.tasks.detection.model import Detector, DetectorConfig

SIZE = (96, 64)  # of a small picture: height and width


class Backbone(nn.Module):
    """Three convolutions at strides 8, 16 and 32."""

    def __init__(self, channels=(8, 12, 16)):
        super().__init__()
        self.feature_info = SimpleNamespace(channels=lambda: list(channels), reduction=lambda: [8, 16, 32])
        sizes = zip((3, *channels), channels, (8, 2, 2), strict=False)
        self.layers = nn.ModuleList(nn.Conv2d(a, b, s + 1, stride=s, padding=s // 2) for a, b, s in sizes)

    def forward(self, x):
        maps = []
        for layer in self.layers:
            x = layer(x).relu()
            maps.append(x)
        return maps


def tiny_detector(num_classes=3, channels=(8, 12, 16), **options):
    options = {"neck_dim": 8, "head_convs": 1, **options}
    return Detector(Backbone(channels), DetectorConfig(**options), num_classes)


def with_some_scores(detector):
    """Untrained class layers give all the same: wider weights make scores and boxes that differ."""
    for layer in detector.head.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight)
    return detector.eval()


def level_sizes(height, width):
    return [(-(-height // stride), -(-width // stride)) for stride in (8, 16, 32, 64)]


def all_points(height, width):
    points, strides = points_of(level_sizes(height, width))
    return points.double(), strides.double()


def random_boxes(count, height=SIZE[0], width=SIZE[1]):
    """Boxes of at least a pixel in a picture."""
    corners = torch.rand(count, 2, 2, dtype=torch.float64) * torch.tensor([width - 1, height - 1])
    return torch.cat([corners.amin(1), corners.amax(1) + 1], dim=1)
