"""What features are worth to a linear classifier: logistic regression on them, all else frozen."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def linear_probe_accuracy(
    known: Tensor,
    known_labels: Tensor,
    asked: Tensor,
    asked_labels: Tensor,
    penalty: float = 1e-4,
    max_steps: int = 500,
) -> float:
    """Share of examples that logistic regression tells right.

    Features are standardised by the known ones, and the regression is solved to its end (L-BFGS, float64): there is no
    schedule to choose.

    Args:
        known: features `(N, D)` of the training pictures.
        known_labels: their classes, `(N,)`.
        asked: features `(M, D)` of the pictures to tell.
        asked_labels: their classes, `(M,)`.
        penalty: half of it times the squared weights joins the mean cross-entropy.
        max_steps: the largest number of steps of L-BFGS.

    Raises:
        ValueError: for a negative penalty, or if there is no example to learn from or to ask.

    Example:
        >>> known, labels = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]]), torch.tensor([0, 0, 1])
        >>> linear_probe_accuracy(known, labels, torch.tensor([[2.0, 0.1], [0.1, 5.0]]), torch.tensor([0, 1]))
        1.0
    """
    if not len(known) or not len(asked):
        raise ValueError(f"a probe needs examples to learn from and to ask; got {len(known)} and {len(asked)}")
    layer, mean, spread = fit_linear_probe(known, known_labels, penalty, max_steps)
    with torch.no_grad():
        found = layer((asked.double() - mean) / spread).argmax(-1)
    return (found == asked_labels).double().mean().item()


@torch.enable_grad()
def fit_linear_probe(
    features: Tensor, labels: Tensor, penalty: float = 1e-4, max_steps: int = 500
) -> tuple[nn.Linear, Tensor, Tensor]:
    """Fit logistic regression.

    Args:
        features: `(N, D)`.
        labels: classes `(N,)`.
        penalty: half of it times the squared weights joins the mean cross-entropy.
        max_steps: the largest number of steps of L-BFGS.

    Returns:
        The layer in float64, for features less the mean `(D,)` and divided by the spread `(D,)`, which come with it.

    Raises:
        ValueError: for a negative penalty.
    """
    if penalty < 0:
        raise ValueError(f"penalty must be at least 0; got {penalty}")
    features = features.detach().double()
    mean, spread = features.mean(0), features.std(0, correction=0).clamp_min(1e-9)
    inputs = (features - mean) / spread
    layer = nn.Linear(inputs.shape[1], int(labels.max()) + 1, dtype=torch.float64, device=inputs.device)
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    optimizer = torch.optim.LBFGS(
        layer.parameters(), max_iter=max_steps, tolerance_grad=1e-7, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(layer(inputs), labels) + penalty / 2 * layer.weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return layer, mean, spread
