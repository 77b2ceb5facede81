"""The search for tensors of N x N in a file, at a picture large enough to tell tokens from channels.

A file of one size is too small for it more often than not; then the same network is written once more for a larger
picture, and that twin is looked into.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from castling.exporting.capture import STEP, Captured, capture, folded, reason
from castling.exporting.exported import ExportedFile, ExportFailed
from castling.exporting.formats import format_of, open_export
from castling.exporting.metadata import Metadata
from castling.measure.quadratic import longest_sequence, quadratic_tensors

Write = Callable[[Captured, Path, Metadata], None]


@dataclass(frozen=True)
class QuadraticSearch:
    """What was found.

    Args:
        found: the operators with a result of N x N; None where it could not be looked for them.
        num_tokens: the N at which was looked for them; None likewise.
        obstacle: why it could not be looked for them; empty where it could.
    """

    found: tuple[str, ...] | None
    num_tokens: int | None
    obstacle: str = ""


@torch.no_grad()
def search_quadratic(
    file: ExportedFile, path: Path, model: nn.Module, images: Tensor, metadata: Metadata, write: Write | None = None
) -> QuadraticSearch:
    """Look for operators that make an N x N tensor.

    Args:
        file: the opened file.
        path: its place.
        model: the network that it was made from, in evaluation mode.
        images: an input `(B, C, H, W)` that the file takes.
        metadata: what the file says about itself.
        write: how a file like it is made of a graph; by default as its format does.

    Raises:
        ExportFailed: if there are some and the network in PyTorch makes none.
    """
    picture, num_tokens = telling_picture(model, images[:1] if "batch" in metadata.dynamic else images)
    try:
        ours = quadratic_tensors(lambda: model(picture), num_tokens)
    except Exception as error:  # networks raise whatever they like
        obstacle = f"the network refuses {tuple(picture.shape)}, where tokens outnumber channels: {reason(error)}"
        return QuadraticSearch(None, None, obstacle)
    if picture.shape == images.shape or {"height", "width"} <= set(metadata.dynamic):
        found = file.quadratic(picture, num_tokens)
    else:
        with tempfile.TemporaryDirectory() as folder:
            twin = Path(folder) / f"twin{path.suffix}"
            (write or format_of(path).write)(capture(folded(model), picture, dynamic=False), twin, metadata)
            found = open_export(twin).quadratic(picture, num_tokens)
    if found and not ours:
        raise ExportFailed(f"{path} makes an N x N tensor that the network in PyTorch does not: {found[0]}")
    return QuadraticSearch(tuple(found), num_tokens)


def telling_picture(model: nn.Module, images: Tensor) -> tuple[Tensor, int]:
    """An image, and its N, that exceeds every width of the network and every side of the image.

    Only then is a result with two axes of N an attention map, and not a weight or a picture.

    Args:
        model: a network.
        images: an input `(B, C, H, W)` that it takes; sides grow by whole multiples.

    Example:
        >>> picture, num_tokens = telling_picture(nn.Conv2d(3, 8, 3), torch.zeros(1, 3, 224, 224))
        >>> picture.shape, num_tokens
        (torch.Size([1, 3, 1120, 1120]), 1225)
    """
    widest = max((max(values.shape, default=0) for values in model.state_dict().values()), default=0)
    num_patches = _num_patches(model, images)
    factor = 1
    while num_patches * factor**2 <= max(widest, factor * max(images.shape[-2:])):
        factor += 1
    picture = torch.zeros(*images.shape[:2], *(factor * side for side in images.shape[-2:]))
    return picture, num_patches * factor**2


def _num_patches(model: nn.Module, images: Tensor) -> int:
    """The longest sequence that a linear layer sees, without a class token; of a network of convolutions, the last map.

    Only patches grow with the picture.
    """
    longest = longest_sequence(model, images)
    last_map = math.prod(-(-side // STEP) for side in images.shape[-2:])
    return longest - 1 if longest > 1 else last_map
