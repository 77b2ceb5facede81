"""What a file says about itself: how a picture becomes its input, and what its outputs are called and mean.

Every format keeps it as JSON under the one key `castling`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import version
from typing import Any, get_type_hints

from torch import Tensor, nn

from castling.exporting.outputs import Form, names_in
from castling.measure.plain_json import json_text, parse_json
from castling.plain_values import plain_value
from castling.sentences import shown
from castling.tasks.task import Deployment

KEY = "castling"
AXES = ("batch", "channels", "height", "width")


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
        batch: the number of images that it was made for.
        run: the recipe and the facts of the run that it is of, from which `castling.open` makes predictions; empty
            where its outputs are not what the task makes them of.
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
    batch: int = 1
    run: Mapping[str, Any] = field(default_factory=dict)
    castling: str = field(default_factory=lambda: version("castling-vit"))

    def __post_init__(self) -> None:
        """Make the values what they are once they were read back: lists instead of tuples, keys that are text."""
        for name in ("preprocessing", "facts", "form", "run"):
            object.__setattr__(self, name, json.loads(json_text(getattr(self, name))))

    def check_images(self, shape: Sequence[int]) -> None:
        """Refuse images `(B, C, H, W)` of a shape that the file does not take: engines fail within, or give nonsense.

        Raises:
            ValueError: names the shape that was given, and what is taken.

        Example:
            >>> metadata = Metadata(image_size=(32, 32), channels=3, dynamic=("batch", "height"), side_step=8)
            >>> metadata.check_images((2, 3, 20, 32))
            Traceback (most recent call last):
            ValueError: the file takes images (any, 3, multiples of 8, 32); got (2, 3, 20, 32)
        """
        made_for = (self.batch, self.channels, *self.image_size)
        given = tuple(shape) if len(shape) == len(AXES) else (0,) * len(AXES)
        fits, taken = True, []
        for axis, length, found in zip(AXES, made_for, given, strict=True):
            step = self.side_step if axis in ("height", "width") else 1
            free = axis in self.dynamic
            taken.append(("any" if step == 1 else f"multiples of {step}") if free else str(length))
            fits &= found > 0 and 0 in (found % step, (found - length) % step) if free else found == length
        if not fits:
            raise ValueError(f"the file takes images ({', '.join(taken)}); got {tuple(shape)}")

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
        "batch": len(example),
        "preprocessing": {
            "mean": mean if len(mean) == channels else [0.5] * channels,
            "std": std if len(std) == channels else [0.5] * channels,
            "interpolation": cfg.get("interpolation", "bicubic"),
            "crop_share": cfg.get("crop_pct", 1.0),
        },
    }
    return Metadata(**{**usual, **known})


def describe_deployment(
    model: nn.Module, deployment: Deployment, task: str | None = None, run: Mapping[str, Any] | None = None
) -> Metadata:
    """What a task says about the use of its network.

    Args:
        model: the network.
        deployment: the task's own words: preprocessing, facts and names of outputs are taken as they are.
        task: the name of the task.
        run: the recipe and the facts of its run.

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
        run=run or {},
    )


def parse_metadata(text: str) -> Metadata:
    """Read what `Metadata.to_json` wrote; fields of other versions are left out, and missing ones are empty.

    Raises:
        ValueError: if it is no JSON, or a field is of another type; names it.

    Example:
        >>> parse_metadata('{"family": "deit", "image_size": [32, 48], "colour": "red"}').image_size
        (32, 48)
    """
    content = plain_value(parse_json(text, "it"), dict[str, Any], "it")
    hints = get_type_hints(Metadata)
    known = {
        item.name: plain_value(content[item.name], hints[item.name], item.name)
        for item in fields(Metadata)
        if item.name in content
    }
    for name, least in (("image_size", 0), ("channels", 0), ("side_step", 1), ("batch", 1)):
        value = known.get(name, least)
        if min(value if isinstance(value, tuple) else (value,)) < least:
            raise ValueError(f"{name} must be at least {least}; got {shown(value)}")
    run = known.get("run") or {}
    for key in ("recipe", "facts") if run else ():
        plain_value(run.get(key), dict[str, Any], f"run.{key}")
    try:
        names_in(known.get("form"))
        return Metadata(**known)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
