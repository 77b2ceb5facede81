"""Numbers against the paper's: every row that exists, with the error that its structure allows."""

import csv
import re
from pathlib import Path

import pytest

import castling.report
from castling.report.paper import ROWS, compare_with_paper, paper_numbers

# Largest errors by row and column; a row that is not named here would fail the test.
LIMITS = {
    r"Castling-DeiT-B": {"params_m": 0.001, "macs_g": 0.001},
    r"Castling-DeiT-T": {"macs_g": 0.005},
    r"Castling-LeViT-\d+": {"params_m": 0.005, "macs_g": 0.01},
    r"Castling-MViTv2-[TB]": {"params_m": 0.015, "macs_g": 0.005},
    r"(DeiT|LeViT|MViTv2)-\w+": {"params_m": 0.01, "macs_g": 0.01},
    r"(token|feature|none), .*": {"macs_m": 0.013, "macs_g": 0.013},
}


@pytest.fixture(scope="module")
def comparisons():
    return compare_with_paper()


def test_errors_stay_within_their_limits(comparisons):
    for found in comparisons:
        if not found.note:
            (limits,) = [limits for row, limits in LIMITS.items() if re.fullmatch(row, found.row)]
            assert abs(found.error) <= limits[found.column], found


def test_what_does_not_fit_is_shown_with_its_reason(comparisons):
    noted = {(found.table, found.row, found.column): found for found in comparisons if found.note}
    assert set(noted) == {
        ("imagenet", "Castling-DeiT-T", "params_m"),
        ("imagenet", "Castling-MViTv2-S", "params_m"),
        ("imagenet", "Castling-MViTv2-S", "macs_g"),
        ("levit384", "feature, post-Q, residual Q", "macs_g"),
    }
    assert all(abs(found.error) > 0.015 for found in noted.values())


def test_every_row_of_ours_is_there(comparisons):
    rows = {(found.table, found.row) for found in comparisons}
    assert len(rows) == len(ROWS) == 31
    ours = {row for table, row, _ in paper_numbers() if table == "imagenet" and row.startswith("Castling")}
    assert ours <= {row for _, row in rows}
    for table in ("revisit", "levit384"):
        assert {row for name, row, _ in paper_numbers() if name == table} == {
            row for name, row in rows if name == table
        }


def test_exact_counts_of_castling_deit_base(comparisons):
    """From ARCHITECTURES' formula: 12 blocks of 12 D^2, 5 x 5 convolutions on 4 D channels, 9 taps for 12 heads."""
    dim, heads, tokens = 768, 12, 197
    weights = 12 * 12 * dim**2 + 1000 * dim + 768 * dim + 12 * (4 * dim * 25 + 9 * heads)
    macs = 12 * tokens * 12 * dim**2 + 196 * 768 * dim + 1000 * dim
    macs += 12 * (2 * tokens * dim * 64 + 9 * tokens * dim + 196 * 4 * dim * 25)
    counted = {found.column: found.computed for found in comparisons if found.row == "Castling-DeiT-B"}
    assert counted == {"params_m": weights / 1e6, "macs_g": macs / 1e9}


def test_the_papers_numbers_are_whole():
    path = Path(castling.report.__file__).with_name("paper_numbers.csv")
    lines = list(csv.DictReader(path.open()))
    assert len(lines) == len(paper_numbers()) == 386
    assert {line["table"] for line in lines} == {
        *("imagenet", "revisit", "levit384", "coco", "ade20k", "kernels", "ablation_s_320", "ablation_m_416"),
        *("throughput", "patch_size", "latency"),
    }
    assert all(line["value"] == "OOM" or float(line["value"]) > 0 for line in lines)
