"""The angular kernel in pictures: its expansion (Eq. 8), and its feature space (the paper's angular_vis figure)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from castling.attention.reference import angular_kernel, angular_kernel_expansion
from castling.report.plotting import BLUE, GREEN, GREY, RED, new_figure, save_figure

ORDERS = (1, 3, 10)


def draw_expansion(path: Path) -> Path:
    """The angular kernel over the cosine, its linear part, truncations of Eq. 8, and what each leaves out."""
    cosine = torch.linspace(-1, 1, 801, dtype=torch.float64)
    vectors = torch.stack([cosine, (1 - cosine**2).sqrt()], dim=-1)
    axis = torch.tensor([[1.0, 0.0]])
    exact = angular_kernel(axis, vectors)[0]
    curves = {order: angular_kernel_expansion(axis, vectors, order)[0] for order in (0, *ORDERS)}

    figure = new_figure(9, 3.6)
    left, right = figure.subplots(1, 2)
    left.plot(cosine, exact, color=RED, linewidth=2, label="angular kernel, Eq. 5")
    left.plot(cosine, curves[0], color=GREEN, linewidth=2, label="linear-angular, 1/2 + c/π")
    for order, alpha in zip(ORDERS, (0.35, 0.65, 1.0), strict=True):
        label = f"Eq. 8 up to k = {order}"
        left.plot(cosine, curves[order], color=BLUE, alpha=alpha, linewidth=1, linestyle="--", label=label)
        right.plot(cosine, exact - curves[order], color=BLUE, alpha=alpha, linewidth=1.2, label=label)
    right.plot(cosine, exact - curves[0], color=GREEN, linewidth=2, label="linear-angular")
    right.axhline(0, color=GREY, linewidth=0.6)
    left.set(xlabel="cosine of query and key", ylabel="similarity", title="The angular kernel and its linear part")
    right.set(xlabel="cosine of query and key", ylabel="residual", title="High-order residuals left out")
    for axes in (left, right):
        axes.set_xticks([-1, -0.5, 0, 0.5, 1])
    left.legend(frameon=False, fontsize=8)
    right.legend(frameon=False, fontsize=8)
    return save_figure(figure, path)


def scale_to_features(kernel_matrix: Tensor, num_dims: int = 3) -> Tensor:
    """Classical multidimensional scaling: points whose inner products are the centred kernel matrix.

    Args:
        kernel_matrix: similarities `(N, N)`, positive semi-definite.
        num_dims: leading dimensions to keep.

    Returns:
        Coordinates `(N, num_dims)`, the widest axis first.
    """
    centred = kernel_matrix - kernel_matrix.mean(0) - kernel_matrix.mean(1, keepdim=True) + kernel_matrix.mean()
    values, vectors = torch.linalg.eigh(centred)
    leading = values.argsort(descending=True)[:num_dims]
    return vectors[:, leading] * values[leading].clamp_min(0).sqrt()


def draw_feature_space(path: Path, seed: int = 0, num_points: int = 400) -> Path:
    """Points of the plane, and where the angular kernel's feature map puts them in its three widest dimensions."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(num_points, 2, generator=generator, dtype=torch.float64)
    angles = torch.atan2(points[:, 1], points[:, 0])
    features = scale_to_features(angular_kernel(points, points))

    figure = new_figure(9, 4)
    left = figure.add_subplot(1, 2, 1)
    right = figure.add_subplot(1, 2, 2, projection="3d")
    colours: dict[str, Any] = {"c": angles, "cmap": "hsv", "vmin": -math.pi, "vmax": math.pi, "s": 12}
    left.scatter(points[:, 0], points[:, 1], **colours)
    left.set(title="(a) 2-D input space", aspect="equal", xlabel="x", ylabel="y")
    shown = right.scatter(features[:, 0], features[:, 1], features[:, 2], **colours)
    right.set(title="(b) 3-D feature space of the angular kernel")
    figure.colorbar(shown, ax=right, label="angle in the input space", shrink=0.7, pad=0.1)
    return save_figure(figure, path)
