"""The losses of a batch: cross entropy of pixels for the light decoder, of matched masks for Mask2Former.

Both are finite, with a gradient, for pictures without a single labelled pixel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, distributed

from castling.attention.heads import autocast_off
from castling.extras import import_extra
from castling.tasks.segmentation.matcher import Matcher
from castling.tasks.segmentation.model import SegmenterConfig
from castling.tasks.task import Losses

IGNORE = 255
# Weights of Mask2Former (section 4.1): class, mask and Dice, and that of the class "none".
WEIGHTS = {"cross_entropy": 2.0, "mask": 5.0, "dice": 5.0}
NONE_WEIGHT = 0.1


def segmentation_losses(
    outputs: Mapping[str, Any], labels: Tensor, config: SegmenterConfig, num_classes: int
) -> Losses:
    """The losses of a batch.

    Pixels that are ignored have no loss with the light decoder. Mask2Former's masks, one for each class that a picture
    has, leave them out: they belong to none, as in its own semantic training.

    Args:
        outputs: what a `Segmenter` gives in training.
        labels: the class of each pixel `(B, H, W)`, 255 where it is ignored.
        config: the segmenter's.
        num_classes: the number of classes.

    Returns:
        The sum of its parts: `cross_entropy`, and of Mask2Former also `mask` and `dice`, weights included and all
        layers summed.

    Raises:
        ValueError: for labels of another shape, or that are no class.

    Example:
        >>> labels = torch.full((1, 8, 8), IGNORE)
        >>> float(segmentation_losses({"logits": torch.randn(1, 3, 2, 2)}, labels, SegmenterConfig(), 3).total)
        0.0
    """
    if labels.ndim != 3:
        raise ValueError(f"labels must have the shape (batch, height, width); got {tuple(labels.shape)}")
    if config.decoder == "fpn":
        total = pixel_loss(outputs["logits"], labels)
        return Losses(total, {"cross_entropy": total})
    parts = mask_losses(outputs, labels, num_classes, config.points)
    return Losses(torch.stack(list(parts.values())).sum(), parts)


def pixel_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy of labelled pixels, with logits `(B, classes, h, w)` at the size of labels `(B, H, W)`."""
    with autocast_off(logits):
        resized = F.interpolate(logits.float(), size=labels.shape[-2:], mode="bilinear")
        total = F.cross_entropy(resized, labels, ignore_index=IGNORE, reduction="sum")
    return total / (labels != IGNORE).sum().clamp(min=1)


def mask_losses(outputs: Mapping[str, Any], labels: Tensor, num_classes: int, points: int) -> dict[str, Tensor]:
    """Mask2Former's losses, transformers' own, of the predictions of every layer, by name, weights included."""
    criterion = _criterion(num_classes, points, labels.device)
    masks, classes = masks_of(labels, num_classes)
    parts: dict[str, list[Tensor]] = {name: [] for name in WEIGHTS}
    for class_logits, mask_logits in zip(outputs["class_logits"], outputs["mask_logits"], strict=True):
        with autocast_off(mask_logits):
            found = criterion(mask_logits.float(), class_logits.float(), masks, classes)
        for name, weight in WEIGHTS.items():
            parts[name].append(weight * found[f"loss_{name}"])
    return {name: torch.stack(losses).sum() for name, losses in parts.items()}


def masks_of(labels: Tensor, num_classes: int) -> tuple[list[Tensor], list[Tensor]]:
    """Masks `(M, H, W)` of the classes that each picture has, and these classes `(M,)`; M may be 0.

    Raises:
        ValueError: for labels that are no class.

    Example:
        >>> masks, classes = masks_of(torch.tensor([[[2, 0], [255, 2]]]), num_classes=3)
        >>> classes[0].tolist(), masks[0].tolist()
        ([0, 2], [[[0.0, 1.0], [0.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]])
    """
    present = [picture.unique() for picture in labels]
    classes = [found[found != IGNORE] for found in present]
    wrong = [int(found) for of_picture in classes for found in of_picture if not 0 <= found < num_classes]
    if wrong:
        raise ValueError(f"labels must lie in [0, {num_classes - 1}], or be {IGNORE} to be ignored; got {wrong[0]}")
    masks = [(picture == found[:, None, None]).float() for picture, found in zip(labels, classes, strict=True)]
    return masks, classes


def mean_num_masks(class_labels: Sequence[Tensor], device: torch.device) -> Tensor:
    """The mean number of masks that a process has, at least 1; all processes must ask for it at once.

    Losses of masks are sums over this number. Gradients are means over processes, so that every mask of the batch has
    the same weight, whichever process has it. transformers' own divides by the number of processes what accelerate has
    averaged already.

    Args:
        class_labels: the classes of each picture's masks `(M,)`.
        device: where the number is wanted.

    Example:
        >>> float(mean_num_masks([torch.tensor([0, 2]), torch.tensor([1])], torch.device("cpu")))
        3.0
    """
    count = torch.tensor(float(sum(map(len, class_labels))), device=device)
    if distributed.is_initialized():
        distributed.all_reduce(count)
        count /= distributed.get_world_size()
    return count.clamp(min=1)


@cache
def _criterion(num_classes: int, points: int, device: torch.device) -> Any:
    modeling: Any = import_extra("transformers.models.mask2former.modeling_mask2former", "segmentation")
    import_extra("scipy", "segmentation")
    class_weight, mask_weight, dice_weight = WEIGHTS.values()
    weights = {"class_weight": class_weight, "mask_weight": mask_weight, "dice_weight": dice_weight}
    config = modeling.Mask2FormerConfig(
        **weights,
        num_labels=num_classes,
        no_object_weight=NONE_WEIGHT,
        train_num_points=points,
        oversample_ratio=3.0,
        importance_sample_ratio=0.75,
    )
    criterion = modeling.Mask2FormerLoss(config, weight_dict={})
    criterion.matcher = Matcher(**weights, num_points=points)
    criterion.get_num_masks = mean_num_masks
    return criterion.to(device)
