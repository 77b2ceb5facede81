"""The paper's synthetic experiment ("Conjecture of Castling"): a two-layer network learns the angular similarity.

As a function of the angle the similarity is a triangle wave with odd harmonics k only, of size 4 / (pi k)^2. Networks
learn them from low to high (F-principle): what the residual branches must stand in for comes late by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from castling.report.plotting import BLUE, GREEN, RED, new_figure, save_figure

HARMONICS = torch.arange(1, 20, 2)


@dataclass(frozen=True)
class FittingRun:
    """What happened while the network learned.

    Args:
        cosine: the cosines at which similarity was sampled, at equal steps of the angle `(M,)`.
        target: the angular similarity there `(M,)`.
        fitted: the network there, after training `(M,)`.
        recorded_steps: training steps at which loss and harmonics were recorded `(R,)`.
        losses: mean squared errors `(R,)`.
        harmonic_errors: `|learned - target| / |target|` of every harmonic `(R, len(HARMONICS))`.
    """

    cosine: Tensor
    target: Tensor
    fitted: Tensor
    recorded_steps: Tensor
    losses: Tensor
    harmonic_errors: Tensor


def fit_angular_similarity(
    num_steps: int = 10_000,
    seed: int = 0,
    hidden_dim: int = 256,
    num_samples: int = 512,
    on_step: Callable[[], object] = lambda: None,
) -> FittingRun:
    """Train a two-layer network on `cosine -> 1 - angle / pi` and record its harmonics on the way.

    Args:
        num_steps: steps of Adam on all samples.
        seed: the seed of the initial weights.
        hidden_dim: hidden units.
        num_samples: angles between 0 and pi.
        on_step: called after every step, for a progress bar.

    Raises:
        ValueError: if `num_steps` is below 1.
    """
    if num_steps < 1:
        raise ValueError(f"num_steps must be at least 1; got {num_steps}")
    angle = (torch.arange(num_samples) + 0.5) * math.pi / num_samples
    cosine, target = torch.cos(angle), 1 - angle / math.pi
    to_harmonics = 2 / num_samples * torch.cos(HARMONICS[:, None] * angle)  # (K, M), a discrete cosine transform
    wanted = to_harmonics @ target

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Linear(1, hidden_dim), nn.ReLU(), nn.Linear(hidden_dim, 1))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_steps)
    recorded = sorted({round(num_steps ** (i / 119)) for i in range(120)} | {num_steps})
    losses, errors = [], []
    fitted = network(cosine[:, None])[:, 0]
    for step in range(1, num_steps + 1):
        loss = (fitted - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        fitted = network(cosine[:, None])[:, 0]
        if step in recorded:
            losses.append((fitted - target).square().mean().item())
            errors.append(((to_harmonics @ fitted.detach() - wanted) / wanted).abs())
        on_step()
    return FittingRun(
        cosine, target, fitted.detach(), torch.tensor(recorded), torch.tensor(losses), torch.stack(errors)
    )


def draw_fitting(run: FittingRun, path: Path) -> Path:
    """Three panels as in the paper: the curves, the loss, and the harmonics learned over training steps."""
    figure = new_figure(12.5, 3.6)
    left, middle, right = figure.subplots(1, 3)
    left.plot(run.cosine, run.target, color=RED, linewidth=3, alpha=0.6, label="angular similarity")
    left.plot(run.cosine, 0.5 + run.cosine / math.pi, color=GREEN, linewidth=1.5, label="linear-angular terms")
    left.plot(run.cosine, run.fitted, color=BLUE, linewidth=1.2, linestyle="--", label="two-layer network")
    left.set(xlabel="cosine of query and key", ylabel="similarity", title="Fitting the angular similarity")
    left.legend(frameon=False, fontsize=8)

    middle.loglog(run.recorded_steps, run.losses, color=BLUE)
    middle.set(xlabel="training step", ylabel="mean squared error", title="Loss")

    edges = torch.cat([run.recorded_steps[:1] * 0.9, (run.recorded_steps[1:] + run.recorded_steps[:-1]) / 2])
    edges = torch.cat([edges, run.recorded_steps[-1:].float()])
    rows = torch.arange(len(HARMONICS) + 1) - 0.5
    shown = right.pcolormesh(edges, rows, run.harmonic_errors.T, cmap="RdYlBu", vmin=0, vmax=1)
    right.set_xscale("log")
    right.set_yticks(range(len(HARMONICS)), [str(k.item()) for k in HARMONICS])
    right.set(xlabel="training step", ylabel="harmonic of the angle", title="Low frequencies are learned first")
    figure.colorbar(shown, ax=right, label="relative error", extend="max")
    return save_figure(figure, path)
