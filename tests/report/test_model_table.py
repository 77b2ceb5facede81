from pathlib import Path

import pytest
import timm

from castling.report.marks import read_marked
from castling.report.model_table import MARK, markdown, model_names, model_row

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.slow
def test_readme_shows_the_registry_as_it_is():
    """Stale? Write it again with: castling models --into README.md."""
    assert read_marked(README, MARK) == markdown([model_row(name) for name in model_names()])


def test_names_by_part_and_by_wildcard():
    assert model_names() == timm.list_models("castling_*")
    assert model_names("levit") == [f"castling_levit_{size}" for size in (128, 192, 256, 384)]
    assert model_names("castling_*_base*") == model_names("base")


def test_only_our_models_are_listed():
    assert all(name.startswith("castling_") for name in model_names("*deit*"))


def test_no_match_names_all_models():
    with pytest.raises(ValueError, match=r"no model matches 'resnet'; there are castling_deit_base"):
        model_names("resnet")


def test_a_row_counts_the_castled_model_and_its_twin():
    row = model_row("castling_deit_tiny_patch16_224")
    assert row.input_size == (224, 224)
    assert row.macs == 1_182_192_384
    assert row.parameters == 5_717_416 + 12 * (768 * 25 + 3 * 9)  # timm's DeiT-T and the convolutions
    assert row.softmax_macs_large - row.macs_large == 12 * 2 * 4097 * 192 * (4097 - 64)
