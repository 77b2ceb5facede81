"""Pictures side by side: what was seen, what was drawn in the hidden places, and the whole."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from castling.tasks.pretraining.patches import Patch, grid_of, hidden_places, normalise, to_images, to_patches

GREY = 0.5  # of hidden places, from black to white
GAP = 4  # pixels between two pictures
SMALLEST = 96  # pixels of a side; smaller pictures are enlarged


def draw_parts(
    drawn: Tensor,
    images: Tensor,
    visible: Tensor,
    patch: Patch,
    normalised: bool,
    mean: Sequence[float],
    std: Sequence[float],
) -> list[Image.Image]:
    """Three pictures in a row for each: the parts that were seen, with the others drawn in, and the whole.

    Args:
        drawn: patches `(B, N, D)`.
        images: pictures `(B, C, H, W)` as the network gets them.
        visible: the places of patches that were seen, `(B, Nv)`.
        patch: the size of a patch.
        normalised: whether patches are drawn with mean 0 and variance 1; they are shown with those of the truth.
        mean: the mean of the pictures' normalisation.
        std: the standard deviation of the pictures' normalisation.
    """
    images, grid = images.float(), grid_of(images, patch)
    wanted = to_patches(images, patch)
    hidden = hidden_places(visible, wanted.shape[1]).unsqueeze(-1)
    drawn = drawn.float()
    if normalised:
        _, middle, spread = normalise(wanted)
        drawn = drawn * spread + middle
    shift, scale = (torch.tensor(values, device=images.device)[:, None, None] for values in (mean, std))
    grey = to_patches(((GREY - shift) / scale).expand_as(images), patch)
    columns = [
        (to_images(patches, patch, grid) * scale + shift).clamp(0, 1).cpu()
        for patches in (torch.where(hidden, grey, wanted), torch.where(hidden, drawn, wanted), wanted)
    ]
    return [_row([_picture(image) for image in row]) for row in zip(*columns, strict=True)]


def _picture(image: Tensor) -> Image.Image:
    """A tensor `(C, H, W)` from 0 to 1, in colour."""
    pixels = (image * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    return Image.fromarray(np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels)


def _row(pictures: Sequence[Image.Image]) -> Image.Image:
    width, height = pictures[0].size
    factor = -(-SMALLEST // min(width, height))
    width, height = factor * width, factor * height
    row = Image.new("RGB", (len(pictures) * (width + GAP) - GAP, height), "white")
    for place, picture in enumerate(pictures):
        row.paste(picture.resize((width, height), Image.Resampling.NEAREST), (place * (width + GAP), 0))
    return row
