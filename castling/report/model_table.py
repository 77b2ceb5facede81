"""The table of models that `castling models` prints and README shows, made from the registry."""

from __future__ import annotations

from dataclasses import dataclass

import timm
import torch

from castling.conversion import castle
from castling.measure import count_macs, count_parameters
from castling.measure.shapes import shapes_only
from castling.report.marks import markdown_table

MARK = "models"
LARGE = 1024


@dataclass(frozen=True)
class ModelRow:
    """Size and cost of one model in its inference form.

    Args:
        name: its name in timm's registry.
        input_size: height and width it is made for.
        parameters: all of them.
        macs: the MACs at its input size.
        macs_large: the MACs at 1024 px.
        softmax_macs_large: the MACs of its softmax twin at 1024 px.
    """

    name: str
    input_size: tuple[int, int]
    parameters: int
    macs: int
    macs_large: int
    softmax_macs_large: int


def model_names(pattern: str = "*") -> list[str]:
    """Names of all our models that match.

    Args:
        pattern: a name with wildcards, or a part of the name.

    Raises:
        ValueError: if none matches; names all.

    Example:
        >>> model_names("deit_tiny")
        ['castling_deit_tiny_patch16_224']
    """
    names = timm.list_models("castling_*")
    wanted = set(timm.list_models(pattern if "*" in pattern else f"*{pattern}*"))
    if not wanted.intersection(names):
        raise ValueError(f"no model matches {pattern!r}; there are {', '.join(names)}")
    return [name for name in names if name in wanted]


def model_row(name: str) -> ModelRow:
    """Count one model and its softmax twin, without computing anything."""
    with shapes_only():
        model = castle(timm.create_model(name), inplace=True)
        twin = timm.create_model(name, kernel="softmax")
        height, width = model.pretrained_cfg["input_size"][1:]
        image, large = torch.empty(1, 3, height, width), torch.empty(1, 3, LARGE, LARGE)
    return ModelRow(
        name,
        (height, width),
        count_parameters(model),
        count_macs(model, image).total,
        count_macs(model, large).total,
        count_macs(twin, large).total,
    )


COLUMNS = ("model", "input", "parameters", "MACs", f"MACs at {LARGE} px", "softmax twin")


def cells(row: ModelRow) -> tuple[str, ...]:
    """A row as text."""
    return (
        row.name,
        "{} x {}".format(*row.input_size),
        f"{row.parameters / 1e6:.1f} M",
        f"{row.macs / 1e9:.2f} G",
        f"{row.macs_large / 1e9:.1f} G",
        f"{row.softmax_macs_large / 1e9:.1f} G",
    )


def markdown(rows: list[ModelRow]) -> str:
    """The table as Markdown."""
    return markdown_table(list(COLUMNS), [[f"`{name}`", *rest] for name, *rest in map(cells, rows)])
