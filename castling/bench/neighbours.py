"""What features are worth without a head: the accuracy of the nearest neighbours."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


@torch.no_grad()
def knn_accuracy(known: Tensor, known_labels: Tensor, asked: Tensor, asked_labels: Tensor, k: int = 20) -> float:
    """Share of examples whose nearest neighbours, by cosine, vote for their class.

    Every neighbour's vote counts exp(cosine / 0.07), as is usual for self-supervised features.

    Args:
        known: features `(N, D)` of the training pictures.
        known_labels: their classes, `(N,)`.
        asked: features `(M, D)` of the pictures to tell.
        asked_labels: their classes, `(M,)`.
        k: number of neighbours.

    Raises:
        ValueError: if there are fewer than k known examples, or none to ask.

    Example:
        >>> known, labels = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]]), torch.tensor([0, 0, 1])
        >>> knn_accuracy(known, labels, torch.tensor([[2.0, 0.1], [0.1, 5.0]]), torch.tensor([0, 1]), k=1)
        1.0
    """
    if not 1 <= k <= len(known):
        raise ValueError(f"k must lie between 1 and the {len(known)} known examples; got {k}")
    if len(asked) == 0:
        raise ValueError("there is no example to ask the neighbours about")
    cosines, nearest = (F.normalize(asked, dim=-1) @ F.normalize(known, dim=-1).mT).topk(k)
    votes = F.one_hot(known_labels)[nearest] * (cosines / 0.07).exp()[..., None]  # (M, k, classes)
    return (votes.sum(1).argmax(-1) == asked_labels).float().mean().item()
