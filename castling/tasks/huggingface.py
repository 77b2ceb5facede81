"""Networks of Hugging Face's transformers as networks like any other: from images to one tensor.

A network is a folder that `save_pretrained` wrote. Its configuration is kept with the facts of a run, so that trained
weights do not need the folder any more.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from castling.extras import import_extra
from castling.measure.plain_json import read_object
from castling.plain_values import plain_value

OUTPUTS = ("logits", "pooler_output", "last_hidden_state")  # the first that a network gives is its output
PREPROCESSING = "preprocessor_config.json"


class HuggingFaceNetwork(nn.Module):
    """A network of transformers, whose output is its logits, else its pooled features, else its tokens.

    Args:
        host: the network as transformers made it.
    """

    def __init__(self, host: Any) -> None:
        super().__init__()
        self.host = host
        size = getattr(host.config, "image_size", None)
        self.image_size = (size, size) if isinstance(size, int) else tuple(size or ())
        self.interpolates = "interpolate_pos_encoding" in inspect.signature(host.forward).parameters

    def forward(self, images: Tensor) -> Tensor:
        """Outputs of images `(B, C, H, W)`; positions are resampled for other sizes than the network's."""
        other_size = self.interpolates and tuple(images.shape[-2:]) != self.image_size
        found = self.host(pixel_values=images, **({"interpolate_pos_encoding": True} if other_size else {}))
        output: Tensor = next(found[name] for name in OUTPUTS if found.get(name) is not None)
        return output


def is_huggingface(name: str) -> bool:
    """Whether this is a folder with a network of transformers in it."""
    return (Path(name) / "config.json").is_file()


def read_huggingface(name: str) -> dict[str, Any]:
    """The configuration of a network.

    Raises:
        ValueError: if it does not say what it is, or is damaged.
    """
    path = Path(name) / "config.json"
    found = read_object(path)
    if "model_type" not in found or not found.get("architectures"):
        raise ValueError(f"{path} has no model_type and architectures: transformers did not write it")
    for key, kind in (("model_type", str), ("architectures", list[str]), ("id2label", dict[str, str] | None)):
        plain_value(found.get(key), kind, f"{path}: {key}")
    return found


def read_preprocessing(name: str) -> dict[str, Any]:
    """Mean and deviation that the network wants, as the folder says; empty where it does not."""
    path = Path(name) / PREPROCESSING
    content = read_object(path) if path.is_file() else {}
    known = {"mean": content.get("image_mean"), "std": content.get("image_std")}
    given = {key: value for key, value in known.items() if value is not None}
    return {key: plain_value(value, list[float], f"{path}: image_{key}") for key, value in given.items()}


def make_huggingface(
    saved: Mapping[str, Any], num_outputs: int, channels: int, options: Mapping[str, Any], start: Path | None = None
) -> nn.Module:
    """Make a network of its configuration.

    Args:
        saved: what `read_huggingface` gave.
        num_outputs: the width of a classifier's head; not used by networks without one.
        channels: the number of channels of the pictures.
        options: what differs from the configuration.
        start: a folder with weights to begin with; None for new ones. A head of another width stays new.

    Raises:
        ValueError: for an architecture or an option that transformers does not have, or weights that do not fit.
    """
    transformers = import_extra("transformers", "huggingface")
    kind = getattr(transformers, saved["architectures"][0], None)
    if kind is None:
        raise ValueError(f"this version of transformers has no {saved['architectures'][0]}")
    described = {key: value for key, value in saved.items() if key not in ("model_type", "id2label", "label2id")}
    config = transformers.AutoConfig.for_model(saved["model_type"], **{**described, "num_channels": channels})
    if num_outputs:
        config.num_labels = num_outputs
    for name, value in options.items():
        if not hasattr(config, name):
            raise ValueError(f"{saved['architectures'][0]} has no option {name!r}")
        setattr(config, name, value)
    if start is None:
        return HuggingFaceNetwork(kind(config))
    host, loaded = kind.from_pretrained(start, config=config, ignore_mismatched_sizes=True, output_loading_info=True)
    names = (key if isinstance(key, str) else key[0] for key in loaded["mismatched_keys"])  # with shapes from 5.0 on
    made = host.state_dict()
    other_shapes = {name for name in names if made[name].shape[0] != config.num_labels}  # and so no part of the head
    wrong = sorted(other_shapes.union(loaded["missing_keys"], loaded["unexpected_keys"]))
    if wrong:
        raise ValueError(f"the weights in {start} do not fit: {len(wrong)} differ, such as {wrong[0]}")
    return HuggingFaceNetwork(host)
