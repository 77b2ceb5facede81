"""What a file says about itself: how a picture becomes its input, and what its outputs are called.

Every format keeps it as JSON under the one key `castling`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import version
from typing import Any

from torch import Tensor, nn

KEY = "castling"


@dataclass(frozen=True)
class Metadata:
    """How to use an exported network.

    Args:
        family: of the network, such as `deit`.
        image_size: height and width that it was made for.
        channels: of the picture.
        mean: of the normalisation, one number per channel, for pixels from 0 to 1.
        std: of the normalisation.
        interpolation: of resizing.
        crop_share: side of the centre crop, as a share of the resized picture.
        labels: names of the classes, in the order of the outputs; empty where nobody knows them.
        dynamic: axes of the input whose length is free, of `batch`, `height` and `width`.
        side_step: free heights and widths must be multiples of it.
        castled: whether the branch was dropped; None for a network that never had one.
        castling: version of the software that wrote the file.
    """

    family: str
    image_size: tuple[int, int]
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str
    crop_share: float
    labels: tuple[str, ...] = ()
    dynamic: tuple[str, ...] = ()
    side_step: int = 1
    castled: bool | None = None
    castling: str = field(default_factory=lambda: version("castling-vit"))

    def to_json(self) -> str:
        """As text for a file."""
        return json.dumps(asdict(self))


def describe(model: nn.Module, example: Tensor, **known: Any) -> Metadata:
    """What timm's registry knows about a network, completed and corrected by what is known better.

    Args:
        model: a network; timm's and ours carry a `pretrained_cfg`.
        example: an input `(B, C, H, W)`.
        **known: fields of `Metadata` that replace it, such as `labels`.

    Raises:
        TypeError: for a field that there is not.

    Example:
        >>> import timm, torch, castling
        >>> model = timm.create_model("castling_levit_128")
        >>> described = describe(model, torch.zeros(1, 3, 256, 320), labels=("cat", "dog"))
        >>> described.family, described.image_size, described.crop_share
        ('levit', (256, 320), 0.9)
    """
    cfg: Mapping[str, Any] = getattr(model, "pretrained_cfg", None) or {}
    channels = example.shape[1]
    name = str(cfg.get("architecture") or type(model).__name__)
    usual: dict[str, Any] = {
        "family": name.removeprefix("castling_").partition("_")[0],
        "image_size": (example.shape[2], example.shape[3]),
        "channels": channels,
        "mean": tuple(cfg.get("mean", ())) if len(cfg.get("mean", ())) == channels else (0.5,) * channels,
        "std": tuple(cfg.get("std", ())) if len(cfg.get("std", ())) == channels else (0.5,) * channels,
        "interpolation": cfg.get("interpolation", "bicubic"),
        "crop_share": cfg.get("crop_pct", 1.0),
    }
    return Metadata(**{**usual, **known})


def parse_metadata(text: str) -> Metadata:
    """Read what `Metadata.to_json` wrote; fields of later versions are left out."""
    content: dict[str, Any] = json.loads(text)
    known = {item.name: content[item.name] for item in fields(Metadata) if item.name in content}
    tuples: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in known.items()}
    return Metadata(**tuples)
