"""What a file says about itself: how a picture becomes its input, and what its outputs are called and mean.

Every format keeps it as JSON under the one key `castling`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import version
from typing import Any

from torch import Tensor, nn

from castling.export.outputs import Form
from castling.measure.plain_json import json_text
from castling.tasks.task import Deployment

KEY = "castling"


@dataclass(frozen=True)
class Metadata:
    """How to use an exported network.

    Args:
        family: the family of the network, such as `deit`.
        image_size: the height and width that it was made for.
        channels: the channels of the picture.
        task: the name of its task; None where it has none.
        preprocessing: how a picture becomes its input, as plain values, such as `mean`, `std`, `interpolation` and
            `crop_share`; pixels count from 0 to 1.
        facts: what gives its outputs a meaning, as plain values.
        outputs: the names of its outputs, in order.
        form: the tree that the network gives in PyTorch, with names of outputs in place of tensors; None where nobody
            knows it.
        dynamic: the axes of the input whose length is free, of `batch`, `height` and `width`.
        side_step: the number that free heights and widths are multiples of.
        castled: whether the branch was dropped; None for a network that never had one.
        castling: the version of the software that wrote the file.

    Raises:
        TypeError: for a value that JSON does not hold.
    """

    family: str = ""
    image_size: tuple[int, int] = (0, 0)
    channels: int = 0
    task: str | None = None
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    form: Form = None
    dynamic: tuple[str, ...] = ()
    side_step: int = 1
    castled: bool | None = None
    castling: str = field(default_factory=lambda: version("castling-vit"))

    def __post_init__(self) -> None:
        """Make the values what they are once they were read back: lists instead of tuples, keys that are text."""
        for name in ("preprocessing", "facts", "form"):
            object.__setattr__(self, name, json.loads(json_text(getattr(self, name))))

    def to_json(self) -> str:
        """As text for a file."""
        return json_text(asdict(self))


def describe_network(model: nn.Module, example: Tensor, **known: Any) -> Metadata:
    """What timm's registry knows about a network, completed and corrected by what is known better.

    Args:
        model: a network; timm's and ours carry a `pretrained_cfg`.
        example: an input `(B, C, H, W)`.
        **known: fields of `Metadata` that replace it, such as `facts`.

    Raises:
        TypeError: for a field that there is not.

    Example:
        >>> import timm, torch, castling
        >>> model = timm.create_model("castling_levit_128")
        >>> described = describe_network(model, torch.zeros(1, 3, 256, 320))
        >>> described.family, described.image_size, described.preprocessing["crop_share"]
        ('levit', (256, 320), 0.9)
    """
    cfg: Mapping[str, Any] = getattr(model, "pretrained_cfg", None) or {}
    channels = example.shape[1]
    name = str(cfg.get("architecture") or type(model).__name__)
    mean, std = (list(cfg.get(key, ())) for key in ("mean", "std"))
    usual: dict[str, Any] = {
        "family": name.removeprefix("castling_").partition("_")[0],
        "image_size": (example.shape[2], example.shape[3]),
        "channels": channels,
        "preprocessing": {
            "mean": mean if len(mean) == channels else [0.5] * channels,
            "std": std if len(std) == channels else [0.5] * channels,
            "interpolation": cfg.get("interpolation", "bicubic"),
            "crop_share": cfg.get("crop_pct", 1.0),
        },
    }
    return Metadata(**{**usual, **known})


def describe_deployment(model: nn.Module, deployment: Deployment, task: str | None = None) -> Metadata:
    """What a task says about the use of its network.

    Args:
        model: the network.
        deployment: the task's own words: preprocessing, facts and names of outputs are taken as they are.
        task: the name of the task.

    Example:
        >>> import torch
        >>> deployment = Deployment(torch.zeros(1, 1, 28, 28), {"mean": [0.3]}, ("depth",), {"unit": "m"})
        >>> described = describe_deployment(nn.Conv2d(1, 1, 3), deployment, "depth")
        >>> described.task, described.preprocessing, described.outputs, described.facts
        ('depth', {'mean': [0.3]}, ('depth',), {'unit': 'm'})
    """
    return describe_network(
        model,
        deployment.example,
        task=task,
        preprocessing=deployment.preprocessing,
        facts=deployment.facts,
        outputs=deployment.outputs or (),
    )


def parse_metadata(text: str) -> Metadata:
    """Read what `Metadata.to_json` wrote; fields of other versions are left out, and missing ones are empty.

    Example:
        >>> parse_metadata('{"family": "deit", "image_size": [32, 48], "colour": "red"}').image_size
        (32, 48)
    """
    content: dict[str, Any] = json.loads(text)
    known = {item.name: content[item.name] for item in fields(Metadata) if item.name in content}
    for name in {"image_size", "outputs", "dynamic"} & set(known):
        known[name] = tuple(known[name])
    return Metadata(**known)
