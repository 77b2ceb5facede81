"""The paper's parameters and MACs beside those of our models, row by row.

`paper_numbers.csv` has every number of every table of the paper (table, row, column, value). `ROWS` says which of them
are counts of a network that exists here, how to build it, and how that table counts.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files

import timm
import torch
from torch import nn

from castling.config import AttentionConfig
from castling.conversion import castle, has_castling_attention, is_castled
from castling.measure import count_macs, count_parameters
from castling.measure.macs import ParameterConvention
from castling.measure.shapes import shapes_only
from castling.models.levit import PLAIN_LEVIT
from castling.models.levit_attention import LevitDesign, Pooling
from castling.training import load_recipe

UNITS = {"params_m": 1e6, "macs_m": 1e6, "macs_g": 1e9, "backbone_macs_g": 1e9}


@cache
def paper_numbers() -> dict[tuple[str, str, str], str]:
    """Every number of the paper's tables, as printed, by table, row and column.

    Example:
        >>> paper_numbers()["imagenet", "Castling-DeiT-B", "params_m"]
        '87.22'
    """
    with files("castling.report").joinpath("paper_numbers.csv").open() as file:
        return {(line["table"], line["row"], line["column"]): line["value"] for line in csv.DictReader(file)}


@dataclass(frozen=True)
class PaperRow:
    """A row of the paper that we can compute.

    Args:
        table: its table in `paper_numbers.csv`.
        row: its name there.
        build: makes the network in its inference form.
        convention: which parameters that table counts.
        image_size: the side of the picture that its MACs are of, or its height and width.
        norms: whether it counts norms among the MACs.
        softmax: whether it counts softmax among the MACs.
        misfits: why a column is known not to fit, by column.
    """

    table: str
    row: str
    build: Callable[[], nn.Module]
    convention: ParameterConvention = "weights"
    image_size: int | tuple[int, int] = 224
    norms: bool = False
    softmax: bool = False
    misfits: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Comparison:
    """A number of the paper beside ours, in the paper's unit.

    Args:
        table: table of the paper.
        row: row of the table.
        column: `params_m`, `macs_m`, `macs_g` or `backbone_macs_g`.
        computed: our count.
        reported: the paper's.
        error: computed over reported, less 1.
        note: why it does not fit, where that is known.
    """

    table: str
    row: str
    column: str
    computed: float
    reported: float
    error: float
    note: str


def compare_with_paper(rows: Iterable[PaperRow] | None = None) -> list[Comparison]:
    """Count parameters and MACs of every row that exists, without computing anything.

    Example:
        >>> result = compare_with_paper([row for row in ROWS if row.row == "Castling-DeiT-B"])
        >>> [(comparison.column, comparison.reported, round(comparison.error, 3)) for comparison in result]
        [('params_m', 87.22, -0.0), ('macs_g', 17.28, -0.0)]
    """
    comparisons = []
    for row in ROWS if rows is None else rows:
        counts = _counts(row.build, row.convention, row.image_size, row.norms, row.softmax)
        for column, unit in UNITS.items():
            printed = paper_numbers().get((row.table, row.row, column))
            if printed is not None:
                computed, reported = counts[column.rpartition("_")[0]] / unit, float(printed)
                note = dict(row.misfits).get(column, "")
                error = computed / reported - 1
                comparisons.append(Comparison(row.table, row.row, column, computed, reported, error, note))
    return comparisons


@cache
def _counts(
    build: Callable[[], nn.Module],
    convention: ParameterConvention,
    size: int | tuple[int, int],
    norms: bool,
    softmax: bool,
) -> dict[str, int]:
    """Parameters and MACs of a network; rows of the same one, such as with other weights, are counted once."""
    with shapes_only():
        model, image = build(), torch.empty(1, 3, *((size, size) if isinstance(size, int) else size))
    macs = count_macs(model, image, norms=norms, softmax=softmax)
    return {
        "params": count_parameters(model, convention),
        "macs": macs.total,
        "backbone_macs": macs.by_module.get("backbone", 0),
    }


@cache
def _recipe(name: str, *overrides: str, num_labels: int = 80) -> Callable[[], nn.Module]:
    """Makes the network of a recipe: one maker for all rows that it stands in."""
    return partial(_of_recipe, name, *overrides, num_labels=num_labels)


def _of_recipe(name: str, *overrides: str, num_labels: int = 80) -> nn.Module:
    """The network of a recipe in its inference form, for COCO's 80 classes or another number of them."""
    facts = {"labels": [str(number) for number in range(num_labels)], "category_ids": list(range(num_labels))}
    task = load_recipe(name, overrides).make_task(facts)
    network = task.build_network()
    return castle(network, inplace=True) if has_castling_attention(network) and not is_castled(network) else network


def _detector(table: str, row: str, recipe: str, *overrides: str) -> PaperRow:
    build, size = _recipe(f"coco/{recipe}", *overrides), int(recipe.rpartition("_")[2])
    return PaperRow(table, row, build, image_size=size, misfits=(("params_m", _PICODET),))


def _castled(name: str) -> nn.Module:
    return castle(timm.create_model(name), inplace=True)


def _deit(size: str) -> nn.Module:
    return timm.create_model(f"castling_deit_{size}_patch16_224", attention=AttentionConfig.baseline(), mlp_conv_size=0)


def _levit(size: int, design: LevitDesign, distilled: bool) -> nn.Module:
    return timm.create_model(f"castling_levit_{size}", design=design, mlp_conv_size=0, distilled=distilled)


def _design_rows(table: str, size: int) -> list[PaperRow]:
    """The six rows of an attention-design table: softmax attention, two heads in LeViT's own, one in the others."""
    rows = []
    for post in (False, True):
        for pooling in ("token", "feature", "none"):
            name = f"{pooling}, {'post-Q, residual Q' if post else 'pre-Q'}"
            design = _softmax_design(pooling, post)
            misfits: tuple[tuple[str, str], ...] = ()
            if table == "levit384" and post and pooling == "feature":
                misfits = (("macs_g", "post-Q adds 102 M to LeViT-192 with and without feature pooling, but not here"),)
            rows.append(PaperRow(table, name, partial(_levit, size, design, not post), norms=True, misfits=misfits))
    return rows


def _softmax_design(pooling: Pooling, post: bool) -> LevitDesign:
    return LevitDesign(pooling, "post" if post else "pre", residual_q=post, attention=AttentionConfig.baseline())


_PICODET = "PicoDet's excitation and P6 have 6 c^2 + 50 c weights for a neck of c channels, which are missing there"
_PLAIN_SOFTMAX = "model.attention={kernel: softmax, output_norm: none, local_conv: none, aux: false}"
_COPIED_ROW = "the paper's row repeats that of MViTv2-S"
ROWS: list[PaperRow] = [
    *(
        PaperRow("imagenet", f"LeViT-{size}", partial(_levit, size, PLAIN_LEVIT, True), convention="all", softmax=True)
        for size in (128, 192, 256, 384)
    ),
    *(PaperRow("imagenet", f"DeiT-{size[0].upper()}", partial(_deit, size)) for size in ("tiny", "small", "base")),
    *(
        PaperRow("imagenet", f"MViTv2-{size[0].upper()}", partial(timm.create_model, f"mvitv2_{size}"))
        for size in ("tiny", "small", "base")
    ),
    PaperRow(
        "imagenet",
        "Castling-DeiT-T",
        partial(_castled, "castling_deit_tiny_patch16_224"),
        misfits=(("params_m", "the paper's 5.64 is plain DeiT-T, while its MACs include the convolutions"),),
    ),
    PaperRow("imagenet", "Castling-DeiT-B", partial(_castled, "castling_deit_base_patch16_224")),
    *(
        PaperRow("imagenet", f"Castling-LeViT-{size}", partial(_castled, f"castling_levit_{size}"), norms=True)
        for size in (128, 192, 256, 384)
    ),
    *(
        PaperRow(
            "imagenet",
            f"Castling-MViTv2-{size[0].upper()}",
            partial(_castled, f"castling_mvitv2_{size}"),
            norms=True,
            misfits=(("params_m", _COPIED_ROW), ("macs_g", _COPIED_ROW)) if size == "small" else (),
        )
        for size in ("tiny", "small", "base")
    ),
    *_design_rows("revisit", 192),
    *_design_rows("levit384", 384),
    *(
        _detector("coco", f"Castling-ViT-{size} (ESNet-ViT)", f"esnet_vit_{size.lower().replace('-', '_')}")
        for size in ("S-320", "S-416", "M-416", "L-416")
    ),
    _detector("coco", "Castling-ViT-L-416 (LCNet-ViT)", "lcnet_vit_l_416"),
    _detector("latency", "Castling-ViT-L-416", "lcnet_vit_l_416"),
    *(
        PaperRow("ade20k", f"{name}{start}", _recipe(recipe, num_labels=150), "all", image_size=(512, 704))
        for start in ("", ", MAE")
        for name, recipe in (
            ("ViT-Base", "ade20k/softmax_vit_base"),
            ("Castling-ViT-Base", "ade20k/castling_vit_base"),
        )
    ),
    *(
        _detector(f"ablation_{size}", row, f"{recipe}_{size}", *overrides)
        for size in ("s_320", "m_416")
        for row, recipe, overrides in (
            ("LCNet", "lcnet", ()),
            ("LCNet-ViT", "lcnet_vit", (_PLAIN_SOFTMAX,)),
            ("+ Lin.", "lcnet_vit", ("model.attention={local_conv: none, aux: false}",)),
            ("+ Lin. + DW.", "lcnet_vit", ("model.attention={aux: false}",)),
            ("+ Lin. + DW. + SparseAttn.", "lcnet_vit", ()),
        )
    ),
]
