"""The loss of masked pretraining: how far hidden patches are from what was drawn in their places."""

from __future__ import annotations

from torch import Tensor

from castling.tasks.pretraining.patches import Patch, hidden_places, normalise, to_patches
from castling.tasks.task import Losses


def picture_errors(drawn: Tensor, images: Tensor, visible: Tensor, patch: Patch, normalised: bool) -> Tensor:
    """The mean squared error of each picture's hidden patches; those that were seen do not count.

    Args:
        drawn: patches `(B, N, D)` as a network draws them.
        images: pictures `(B, C, H, W)`.
        visible: the places of patches that were seen, `(B, Nv)`.
        patch: the size of a patch.
        normalised: whether each patch is wanted with mean 0 and variance 1; then an error of 1 is about that of
            drawing nothing but every patch's mean.

    Returns:
        `(B,)`, float32.
    """
    wanted = to_patches(images.float(), patch)
    if normalised:
        wanted, _, _ = normalise(wanted)
    errors = (drawn.float() - wanted).square().mean(-1)  # (B, N)
    hidden = hidden_places(visible, errors.shape[1])
    return (errors * hidden).sum(1) / hidden.sum(1)


def drawing_loss(drawn: Tensor, images: Tensor, visible: Tensor, patch: Patch, normalised: bool) -> Losses:
    """The mean of `picture_errors`, which takes the same arguments; of all pictures as many patches are hidden."""
    return Losses(picture_errors(drawn, images, visible, patch, normalised).mean(), {})
