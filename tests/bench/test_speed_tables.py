import pytest

from castling.bench.results_file import append_row
from castling.bench.speed_tables import TABLES, newest_rows, write_speed_tables

TINY = "castling_deit_tiny_patch16_224"


def add(folder, processor, date, **cells):
    row = {
        "model": TINY,
        "size": 224,
        "patch": 16,
        "engine": "eager",
        "batch": 1,
        "castled_ms": 10.0,
        "castled_lower_quartile_ms": 9.0,
        "castled_upper_quartile_ms": 12.5,
        "softmax_ms": 15.0,
        "softmax_lower_quartile_ms": 15.0,
        "softmax_upper_quartile_ms": 15.0,
        "host_ms": None,
        "speedup_over_softmax": 1.5,
        "speedup_over_host": 1.25,
        "mac_bound": 1.1,
        "castled_peak_mib": 52.5,
        "softmax_peak_mib": 50.0,
        "host_peak_mib": None,
        "paper_softmax_images_per_s": None,
        "paper_castled_images_per_s": None,
        "processor": processor,
        "threads": 2,
        "torch": "2.15",
        "commit": "abc",
        "date": date,
    }
    append_row(folder / f"models-{processor.lower()}-2.15-{date}.csv", row | cells, "castling bench models")


def page_with(folder, *names):
    page = folder / "page.md"
    page.write_text("".join(f"<!-- castling {name}: begin -->\n<!-- castling {name}: end -->\n" for name in names))
    return page


def test_the_newest_file_of_each_processor_counts(tmp_path):
    add(tmp_path, "One", "2030-01-02")
    add(tmp_path, "One", "2030-01-03", commit="new")
    add(tmp_path, "Two", "2029-12-31")
    found = newest_rows(tmp_path)
    assert {rows[0]["processor"]: rows[0]["commit"] for rows in found} == {"One": "new", "Two": "abc"}


def test_tables_are_written_between_the_marks(tmp_path):
    add(tmp_path, "One", "2030-01-02")
    faster = {"castled_ms": 5.0, "speedup_over_softmax": 2.0}
    add(tmp_path, "One", "2030-01-02", engine="openvino", **faster)
    add(tmp_path, "One", "2030-01-02", engine="openvino_bf16", **faster | {"castled_ms": 2.5})
    add(tmp_path, "One", "2030-01-02", size=512, paper_softmax_images_per_s="10", paper_castled_images_per_s="15")
    add(tmp_path, "One", "2030-01-02", patch=4)
    add(tmp_path, "One", "2030-01-02", batch=16, size=1024)
    place = {"processor": "One", "threads": 2, "torch": "2.15", "commit": "abc", "date": "2030-01-02"}
    part = {"part": "taps", "tokens": 197, "channels": 192, "native_ms": 0.05, "torch_ms": 0.2, "faster": 4.0}
    append_row(tmp_path / "parts-one-2030-01-02.csv", part | place, "parts.py")
    form = {"form": "rotary", "engine": "eager", "size": 224, "median_ms": 9.37, "over_authors": 1.0142}
    append_row(tmp_path / "forms_cost-one-2030-01-02.csv", form | place, "forms.py")
    one = {"tokens": 1024, "head_dim": 64, "sdpa_over_eager": 5.44, "sdpa_over_compiled": 7.4, "sdpa_over_folded": 19.5}
    append_row(tmp_path / "attention-one-2030-01-02.csv", one | place, "attention.py")
    page = page_with(tmp_path, *(f"speed {name}" for name in TABLES), "study other")
    write_speed_tables(page, tmp_path)
    text = page.read_text()
    assert text.count("One, 2 threads, torch 2.15, commit abc:") == 6
    assert "| deit_tiny, eager | 1.50x (1.25x) | **1.50x (1.25x)** | **1.50x (1.25x)** |\n" in text
    assert "| deit_tiny, openvino | **2.00x (1.25x)** |  |  |\n" in text
    assert "| deit_tiny, openvino_bf16 | 2.00x (1.25x) |  |  |\n" in text  # the fastest, but not in float32
    place, times = "| deit_tiny | eager | 512 | 16 | 1 |", " 10.0 (9.0 to 12.5) | 15.0 (15.0 to 15.0) |  |"
    assert f"{place}{times} 1.50x | 1.25x | 1.10x | 1.50x |" in text
    assert "| deit_tiny | eager | 1024 | 16 | 16 | 52 | 50 |  | 1.05 |" in text
    assert "| taps | 197 | 192 | 0.050 | 0.200 | 4.0x |" in text
    assert "| 1,024 | 16x | 5.4x | 7.4x | 20x |" in text
    assert "| `rotary` | 9.4 (1.014) |" in text
    assert text.endswith("<!-- castling study other: begin -->\n<!-- castling study other: end -->\n")


def test_what_cannot_be_written_is_named(tmp_path):
    with pytest.raises(ValueError, match="has no marks of speed"):
        write_speed_tables(page_with(tmp_path, "study x"), tmp_path)
    with pytest.raises(ValueError, match="unknown table of speed 'al': did you mean 'all'"):
        write_speed_tables(page_with(tmp_path, "speed al"), tmp_path)
    with pytest.raises(ValueError, match="has no file models-"):
        write_speed_tables(page_with(tmp_path, "speed all"), tmp_path)
