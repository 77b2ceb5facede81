"""Which query answers for which mask: the assignment of least cost, as Mask2Former's, for any numbers a network gives.

A cost that is no number is a large one, so that its query is taken only for want of others; a picture without masks
has an empty assignment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from castling.attention.heads import autocast_off
from castling.extras import import_extra

FAR = 1e9  # the largest cost; doubles still tell costs of 1e-6 apart beside it
Matches = list[tuple[Tensor, Tensor]]


def assign(costs: Tensor) -> tuple[Tensor, Tensor]:
    """The assignment of least total cost.

    Args:
        costs: the costs of each query for each mask, `(Q, M)`; any of them may be infinite or no number.

    Returns:
        Queries, in order, and their masks: `min(Q, M)` of each, on the CPU.

    Example:
        >>> assign(torch.tensor([[1.0, 3.0], [float("nan"), 2.0], [0.0, 9.0]]))
        (tensor([1, 2]), tensor([1, 0]))
    """
    optimize: Any = import_extra("scipy.optimize", "segmentation")
    costs = costs.detach().double().cpu()
    costs = torch.where(costs.isfinite(), costs, FAR).clamp(-FAR, FAR)
    queries, masks = optimize.linear_sum_assignment(costs.numpy())
    return torch.as_tensor(queries), torch.as_tensor(masks)


class Matcher(nn.Module):
    """In place of transformers' `Mask2FormerHungarianMatcher`, with costs in float32 whatever autocast says.

    Args:
        class_weight: what the probability of the class counts.
        mask_weight: what the cross entropy of the mask counts.
        dice_weight: what the Dice loss of the mask counts.
        num_points: the number of random points at which masks are compared.
    """

    def __init__(self, class_weight: float, mask_weight: float, dice_weight: float, num_points: int) -> None:
        super().__init__()
        self.class_weight, self.mask_weight, self.dice_weight = class_weight, mask_weight, dice_weight
        self.num_points = num_points

    @torch.no_grad()
    def forward(
        self,
        masks_queries_logits: Tensor,
        class_queries_logits: Tensor,
        mask_labels: Sequence[Tensor],
        class_labels: Sequence[Tensor],
    ) -> Matches:
        """Match the queries of every picture; the names are transformers'.

        Args:
            masks_queries_logits: `(B, Q, h, w)`.
            class_queries_logits: `(B, Q, classes + 1)`.
            mask_labels: the masks of each picture `(M, H, W)`, of 0 and 1.
            class_labels: their classes `(M,)`.

        Returns:
            Queries and masks that belong together, for each picture.
        """
        pictures = zip(masks_queries_logits, class_queries_logits, mask_labels, class_labels, strict=True)
        with autocast_off(masks_queries_logits):
            return [assign(self.costs(*picture)) for picture in pictures]

    def costs(self, masks: Tensor, classes: Tensor, mask_labels: Tensor, class_labels: Tensor) -> Tensor:
        """Costs `(Q, M)` of one picture."""
        if not len(class_labels):
            return masks.new_zeros(len(masks), 0)
        modeling: Any = import_extra("transformers.models.mask2former.modeling_mask2former", "segmentation")
        points = torch.rand(1, self.num_points, 2, device=masks.device)
        predicted, wanted = (
            modeling.sample_point(x.float()[:, None], points.expand(len(x), -1, -1), align_corners=False)[:, 0]
            for x in (masks, mask_labels)
        )  # (Q, P) and (M, P)
        by_mask = modeling.pair_wise_sigmoid_cross_entropy_loss(predicted, wanted)
        by_dice = modeling.pair_wise_dice_loss(predicted, wanted)
        by_class = -classes.float().softmax(-1)[:, class_labels]
        return self.mask_weight * by_mask + self.dice_weight * by_dice + self.class_weight * by_class
