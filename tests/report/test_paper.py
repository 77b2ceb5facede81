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
    r"(Castling-)?ViT-Base(, MAE)?": {"params_m": 0.01, "macs_g": 0.006, "backbone_macs_g": 0.009},
}

DETECTORS = ("coco", "latency", "ablation_s_320", "ablation_m_416")


@pytest.fixture(scope="module")
def comparisons():
    return compare_with_paper()


@pytest.mark.slow
def test_errors_stay_within_their_limits(comparisons):
    for found in comparisons:
        if not found.note and found.table not in DETECTORS:
            (limits,) = [limits for row, limits in LIMITS.items() if re.fullmatch(row, found.row)]
            assert abs(found.error) <= limits[found.column], found


@pytest.mark.slow
def test_detectors_fit_but_for_what_picodet_has_and_the_paper_does_not_count(comparisons):
    """ARCHITECTURES 5.2 and 5.3: the weights of excitation and P6, for necks of 96, 128 and 160 channels."""
    width = {"s": 96, "m": 128, "l": 160}
    found = [one for one in comparisons if one.table in DETECTORS]
    assert len(found) == 2 * 16
    for one in found:
        if one.column == "macs_g":
            assert abs(one.error) <= 0.015, one
            continue
        size = one.table[9] if one.table.startswith("ablation") else one.row[13].lower()  # Castling-ViT-S-320
        c = width[size]
        assert 0.012 < one.error < 0.06, one
        assert "excitation and P6" in one.note, one  # which stands beside it
        assert one.computed - (6 * c**2 + 50 * c) / 1e6 == pytest.approx(one.reported, rel=0.006), one


@pytest.mark.slow
def test_what_does_not_fit_is_shown_with_its_reason(comparisons):
    noted = {
        (found.table, found.row, found.column): found
        for found in comparisons
        if found.note and found.table not in DETECTORS
    }
    assert set(noted) == {
        ("imagenet", "Castling-DeiT-T", "params_m"),
        ("imagenet", "Castling-MViTv2-S", "params_m"),
        ("imagenet", "Castling-MViTv2-S", "macs_g"),
        ("levit384", "feature, post-Q, residual Q", "macs_g"),
    }
    assert all(abs(found.error) > 0.015 for found in noted.values())


@pytest.mark.slow
def test_every_row_of_ours_is_there(comparisons):
    rows = {(found.table, found.row) for found in comparisons}
    assert len(rows) == len(ROWS) == 31 + 16 + 4
    ours = {row for table, row, _ in paper_numbers() if table == "imagenet" and row.startswith("Castling")}
    assert ours <= {row for _, row in rows}
    for table in ("revisit", "levit384", "ade20k", "ablation_s_320", "ablation_m_416"):
        assert {row for name, row, _ in paper_numbers() if name == table} == {
            row for name, row in rows if name == table
        }


def test_exact_counts_of_castling_deit_base():
    """From ARCHITECTURES' formula: 12 blocks of 12 D^2, 5 x 5 convolutions on 4 D channels, 9 taps for 12 heads."""
    dim, heads, tokens = 768, 12, 197
    weights = 12 * 12 * dim**2 + 1000 * dim + 768 * dim + 12 * (4 * dim * 25 + 9 * heads)
    macs = 12 * tokens * 12 * dim**2 + 196 * 768 * dim + 1000 * dim
    macs += 12 * (2 * tokens * dim * 64 + 9 * tokens * dim + 196 * 4 * dim * 25)
    rows = [row for row in ROWS if row.row == "Castling-DeiT-B"]
    counted = {found.column: found.computed for found in compare_with_paper(rows)}
    assert counted == {"params_m": weights / 1e6, "macs_g": macs / 1e9}


COLUMNS = {
    "imagenet": "params_m macs_g top1 top5",
    "revisit": "macs_m top1",
    "levit384": "macs_g top1",
    "coco": "params_m macs_g map ap50 ap75",
    "ade20k": "params_m macs_g backbone_macs_g miou macc pacc",
    "kernels": "s_320_map s_320_ap50 s_416_map s_416_ap50 m_416_map m_416_ap50",
    "ablation_s_320": "params_m macs_g map ap50 ap75",
    "ablation_m_416": "params_m macs_g map ap50 ap75",
    "throughput": "images_per_s_512 images_per_s_1024 images_per_s_1536 memory_mb_512 memory_mb_1024 memory_mb_1536",
    "patch_size": "images_per_s_patch8 images_per_s_patch4 images_per_s_patch2",
    "latency": "params_m macs_g map latency_ms",
}
PRINTED = [  # rows as the paper prints them, copied from its tables; a dash where it has no number
    ("imagenet", "MobileNetV2-1.4", "6.9 0.58 74.7 -"),
    ("imagenet", "EfficientNet-B1", "7.8 0.70 79.1 94.4"),
    ("imagenet", "LeViT-128", "9.2 0.41 78.6 -"),
    ("imagenet", "Castling-LeViT-128", "10.5 0.49 79.6 94.6"),
    ("imagenet", "Castling-LeViT-192", "12.7 0.82 81.3 95.5"),
    ("imagenet", "DeiT-T", "5.6 1.25 74.5 91.9"),
    ("imagenet", "Castling-DeiT-T", "5.64 1.18 76.0 92.5"),
    ("imagenet", "Castling-LeViT-256", "22.0 1.40 82.6 96.1"),
    ("imagenet", "Castling-LeViT-384", "45.8 2.90 83.7 96.7"),
    ("imagenet", "Swin-S", "50.0 8.70 83.2 96.2"),
    ("imagenet", "MViTv2-S", "34.7 6.95 83.6 -"),
    ("imagenet", "Castling-MViTv2-T", "24.1 4.50 84.1 96.8"),
    ("imagenet", "Castling-MViTv2-S", "34.7 6.95 84.6 97.0"),
    ("imagenet", "DeiT-B", "86.3 17.56 83.4 96.5"),
    ("imagenet", "Castling-DeiT-B", "87.22 17.28 84.2 -"),
    ("imagenet", "Castling-MViTv2-B", "51.9 9.82 85.0 97.2"),
    ("revisit", "token, pre-Q", "685 78.00"),
    ("revisit", "feature, post-Q, residual Q", "763 77.23"),
    ("revisit", "none, post-Q, residual Q", "838 80.05"),
    ("levit384", "feature, pre-Q", "2.36 82.55"),
    ("levit384", "none, pre-Q", "2.61 82.65"),
    ("levit384", "none, post-Q, residual Q", "2.96 83.65"),
    ("coco", "EfficientDet-D0", "3.90 2.54 34.6 53.0 37.1"),
    ("coco", "YOLOv5-N", "1.90 2.30 28.0 45.7 -"),
    ("coco", "FBNetV5-AR-320x640", "- 1.80 30.4 - -"),
    ("coco", "Castling-ViT-S-320 (ESNet-ViT)", "3.25 0.62 28.1 42.3 29.2"),
    ("coco", "Castling-ViT-L-416 (LCNet-ViT)", "13.10 5.31 37.3 53.4 39.6"),
    ("ade20k", "ViT-Base", "118 229 182 34.54 46.36 75.84"),
    ("ade20k", "Castling-ViT-Base", "118 195 147 34.67 46.47 76.20"),
    ("ade20k", "Castling-ViT-Base, MAE", "118 195 147 48.44 61.82 83.29"),
    ("kernels", "LCNet-ViT", "25.9 39.6 29.8 44.4 34.9 50.4"),
    ("kernels", "ReLU-S", "23.9 36.7 - - 30.9 45.3"),
    ("kernels", "Lin.-Angular", "27.0 40.6 30.4 45.5 35.5 51.1"),
    ("ablation_s_320", "LCNet", "1.10 0.48 25.5 39.0 26.5"),
    ("ablation_s_320", "+ Lin. + DW. + SparseAttn.", "2.14 0.62 27.0 40.6 28.0"),
    ("ablation_m_416", "LCNet-ViT", "7.53 3.51 34.9 50.4 37.0"),
    ("ablation_m_416", "+ Lin. + DW.", "7.53 3.15 35.1 50.9 36.9"),
    ("throughput", "DeiT-Base", "40 6 OOM 1220 12369 OOM"),
    ("throughput", "Castling-MViTv2-Base", "50 10 4 1483 7028 16028"),
    ("patch_size", "Castling-DeiT-Tiny", "410 103 20"),
    ("patch_size", "DeiT-Base", "60 8 OOM"),
    ("latency", "YOLOv5-S", "7.3 17.1 36.7 8.7"),
    ("latency", "RetinaNet+PVT-Tiny", "23.0 221 36.7 -"),
    ("latency", "Castling-ViT-L-416", "13.1 5.3 37.3 3.9"),
]


@pytest.mark.parametrize(("table", "row", "printed"), PRINTED)
def test_numbers_are_as_printed(table, row, printed):
    found = [paper_numbers().get((table, row, column), "-") for column in COLUMNS[table].split()]
    assert found == printed.split()


def test_every_table_is_there_with_its_columns_and_checked_in_several_rows():
    columns = {}
    for table, _, column in paper_numbers():
        columns.setdefault(table, set()).add(column)
    assert columns == {table: set(names.split()) for table, names in COLUMNS.items()}
    assert all(sum(table == checked for checked, _, _ in PRINTED) >= 2 for table in COLUMNS)


def test_no_number_stands_twice_and_each_is_one():
    path = Path(castling.report.__file__).with_name("paper_numbers.csv")
    lines = list(csv.DictReader(path.open()))
    assert len(lines) == len(paper_numbers())
    assert all(line["value"] == "OOM" or float(line["value"]) > 0 for line in lines)
