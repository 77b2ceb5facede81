"""PicoDet's losses of a batch: varifocal for classes; GIoU and distribution focal for the boxes of assigned points.

Good boxes count more, and the sums are divided by what they count in all, over all processes, as PicoDet's heads do it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, distributed
from torchvision.ops import generalized_box_iou_loss

from castling.config import check_choice
from castling.tasks.detection.assign import Assignment, atss, simota, task_aligned
from castling.tasks.detection.boxes import encode
from castling.tasks.detection.focal import distribution_focal, varifocal
from castling.tasks.detection.model import DetectorConfig
from castling.tasks.task import Losses

AssignerName = Literal["atss", "task_aligned", "simota"]


class LossWeights(NamedTuple):
    """What each loss counts."""

    vfl: float
    giou: float
    dfl: float


WEIGHTS = {"v2": LossWeights(vfl=1.0, giou=2.5, dfl=0.5), "v1": LossWeights(vfl=1.0, giou=2.0, dfl=0.25)}


def detection_losses(
    outputs: Mapping[str, Tensor], targets: Mapping[str, Tensor], config: DetectorConfig, assigner: AssignerName
) -> Losses:
    """The losses of a batch, or of a process's share of it; all processes must ask for them at once.

    Args:
        outputs: what a `Detector` gives in training.
        targets: `boxes` `(B, M, 4)` in pixels of the input and `labels` `(B, M)`, -1 where there is no box to learn; M
            may be 0.
        config: the detector's; its head decides the weights.
        assigner: the name of a function of `castling.tasks.detection.assign`.

    Returns:
        The sum of its parts `vfl`, `giou` and `dfl`, weights included.

    Raises:
        ValueError: for an unknown assigner.
    """
    check_choice("assigner", assigner, get_args(AssignerName))
    scores, points, strides = outputs["scores"], outputs["points"], outputs["strides"]
    assigned = assign(outputs, targets, assigner)
    image, point = (assigned.box >= 0).nonzero(as_tuple=True)  # (K,) each: the positive points
    box, quality = assigned.box[image, point], assigned.quality[image, point]
    wanted, label = targets["boxes"][image, box], targets["labels"][image, box]

    q = torch.zeros_like(scores).index_put((image, point, label), quality)
    vfl = varifocal(scores, q).sum()
    weight = quality if config.head == "v2" else scores.detach()[image, point].amax(-1)
    giou = (weight * generalized_box_iou_loss(outputs["boxes"][image, point], wanted)).sum()
    distances = encode(wanted, points[point], strides[point])
    dfl = (weight * distribution_focal(outputs["distributions"][image, point], distances).mean(-1)).sum()

    counts = torch.stack([weight.sum(), weight.new_tensor(len(point))])
    counted, num_positive = mean_over_processes(counts).clamp(min=1)
    counted_classes = counted if config.head == "v2" else num_positive
    by_weight = WEIGHTS[config.head]
    parts = {
        "vfl": by_weight.vfl * vfl / counted_classes,
        "giou": by_weight.giou * giou / counted,
        "dfl": by_weight.dfl * dfl / counted,
    }
    return Losses(torch.stack(list(parts.values())).sum(), parts)


def mean_over_processes(counts: Tensor) -> Tensor:
    """The mean of what processes count.

    Gradients are means over processes too: each box of the batch has the same weight, whichever process has it.

    Args:
        counts: those of this process, without a gradient; kept as they are.

    Example:
        >>> mean_over_processes(torch.tensor([3.0, 4.0])).tolist()
        [3.0, 4.0]
    """
    if not distributed.is_initialized():
        return counts
    total = counts.clone()
    distributed.all_reduce(total)
    return total / distributed.get_world_size()


@torch.no_grad()
def assign(outputs: Mapping[str, Tensor], targets: Mapping[str, Tensor], assigner: AssignerName) -> Assignment:
    """Assign the boxes of a batch, picture by picture: few have as many boxes as the fullest.

    Args:
        outputs: the outputs, as for `detection_losses`.
        targets: likewise.
        assigner: likewise.

    Returns:
        Both `(B, A)`; indices are those of the padded boxes.
    """
    points, strides = outputs["points"], outputs["strides"]
    found = []
    for scores, predicted, boxes, labels in zip(
        outputs["scores"].detach(), outputs["boxes"].detach(), targets["boxes"], targets["labels"], strict=True
    ):
        places = (labels >= 0).nonzero()[:, 0]
        boxes, labels = boxes[places], labels[places]
        if assigner == "atss":
            box, quality = atss(points, strides, boxes, predicted)
        elif assigner == "task_aligned":
            box, quality = task_aligned(points, boxes, labels, scores, predicted)
        else:
            box, quality = simota(points, strides, boxes, labels, scores, predicted)
        if len(places):
            box = torch.where(box >= 0, places[box.clamp(min=0)], -1)
        found.append((box, quality))
    indices, qualities = zip(*found, strict=True)
    return Assignment(torch.stack(indices), torch.stack(qualities))
