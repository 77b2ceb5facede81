import logging

import pytest
import torch

from castling.bench import models as bench_models
from castling.bench.candidates import Setting
from castling.bench.figures import draw_speedups
from castling.bench.models import make_settings, measure_row, paper_cells, paper_ratios
from castling.measure import Timing
from castling.measure.memory import PeakMemory, forecast_memory

pytestmark = pytest.mark.slow

DEIT = "castling_deit_tiny_patch16_224"
LEVIT = Setting("castling_levit_128", 64, 16)


@pytest.fixture(autouse=True)
def small_passes(monkeypatch):
    """Passes that take no time, no engine and no memory, so that what is made of them can be seen."""
    monkeypatch.setattr(bench_models, "build_timed", lambda setting, kind, threads, against: lambda: kind)
    monkeypatch.setattr(bench_models, "forecast_memory", lambda build, shape: 0.0)
    monkeypatch.setattr(bench_models, "TOTAL_SECONDS", 0.0)


def test_settings_are_sizes_for_all_and_patches_for_deit():
    found = make_settings(["deit_tiny", "mvitv2_tiny", DEIT], [224, 512], [16, 8], ["eager", "openvino"])
    expected = [
        Setting(name, size, patch, engine)
        for name, places in {
            DEIT: [(224, 16), (512, 16), (224, 8)],
            "castling_mvitv2_tiny": [(224, 4), (512, 4)],
        }.items()
        for engine in ("eager", "openvino")
        for size, patch in places
    ]
    assert found == expected


def test_rectangles_are_measured_and_only_squares_are_drawn(tmp_path):
    row = measure_row(Setting(DEIT, "32x64", 16), repeats=1, memory=False)
    assert (row["size"], row["tokens"], row["notes"]) == ("32x64", 8, "")
    assert row["castled_macs"] < measure_row(Setting(DEIT, 64, 16), repeats=1, memory=False)["castled_macs"]
    assert not draw_speedups([row], tmp_path / "of")


def test_ratios_are_those_of_medians(monkeypatch):
    rounds = {
        "castled": (2.0, 1.0, 5.0),
        "softmax": (6.0, 4.0, 7.0),
        "host": (3.0, 0.5, 4.0),
        "unfused": (8.0, 8.0, 8.0),
    }
    timings = {kind: Timing(*(value / 1e3 for value in values)) for kind, values in rounds.items()}
    monkeypatch.setattr(bench_models, "time_interleaved", lambda passes, **kwargs: timings)
    row = measure_row(Setting(DEIT, 32, 16), memory=False)
    for kind, values in rounds.items():
        columns = [row[f"{kind}_{column}"] for column in ("ms", "lower_quartile_ms", "upper_quartile_ms")]
        assert columns == pytest.approx(values)
    speedups = [row[f"speedup_over_{kind}"] for kind in ("softmax", "host", "unfused")]
    assert speedups == pytest.approx([3.0, 1.5, 4.0])
    assert row["bound_reached"] == pytest.approx(3.0 / row["mac_bound"])


def test_a_row_has_times_ratios_and_the_bound():
    row = measure_row(Setting(DEIT, 32, 16), repeats=1, memory=False)
    assert row["tokens"] == 4
    assert row["speedup_over_softmax"] == pytest.approx(row["softmax_ms"] / row["castled_ms"])
    for kind in ("host", "unfused"):
        assert row[f"speedup_over_{kind}"] == pytest.approx(row[f"{kind}_ms"] / row["castled_ms"])
    assert row["mac_bound"] == pytest.approx(row["softmax_macs"] / row["castled_macs"])
    assert row["bound_reached"] == pytest.approx(row["speedup_over_softmax"] / row["mac_bound"])
    # Four patches and a class token: castled has D x D products and two convolutions instead of N x N maps.
    attention = 12 * 2 * 5 * 192 * (64 - 5)
    taps, convolutions = 12 * 5 * 192 * 9, 12 * 4 * 768 * 25
    assert row["castled_macs"] - row["softmax_macs"] == attention + taps
    assert row["castled_macs"] - row["host_macs"] == attention + taps + convolutions
    assert row["notes"] == ""
    assert [row[name] for name in ("against", "against_ms", "castled_peak_mib", "against_macs")] == [None] * 4


def test_a_pass_that_takes_long_has_few_rounds(monkeypatch):
    asked = []
    monkeypatch.setattr(bench_models, "time_interleaved", lambda passes, repeats, **_: asked.append(repeats) or {})
    for seconds in (60.0, 0.0):
        monkeypatch.setattr(bench_models, "SLOW_SECONDS", seconds)
        measure_row(Setting(DEIT, 32, 16), memory=False)
    assert asked == [bench_models.MIN_ROUNDS, bench_models.SLOW_ROUNDS]


def test_memory_is_that_of_the_rows_engine_and_batch(monkeypatch):
    asked = []
    monkeypatch.setattr(
        bench_models, "peak_memory", lambda target, arguments, threads: asked.append(arguments) or PeakMemory(0, 1, 2)
    )
    place = {"model": "castling_levit_128", "size": 64, "patch": 16, "engine": "eager", "batch": 2}
    measure_row(Setting(**place), repeats=1, without=("host", "unfused"))
    assert asked == [{**place, "kind": kind, "against": None} for kind in ("castled", "softmax")]
    asked.clear()
    monkeypatch.setattr(bench_models, "write_pass", lambda folder, setting, kind, against: folder / kind)
    measure_row(Setting(**{**place, "engine": "openvino"}), repeats=1, without=("host", "unfused"))
    assert [arguments["shape"] for arguments in asked] == [[2, 3, 64, 64]] * 2
    assert [arguments["path"].rpartition("/")[2] for arguments in asked] == ["castled", "softmax"]


def test_candidates_are_left_out():
    row = measure_row(Setting(DEIT, 32, 16), repeats=1, memory=False, without=("unfused", "host"))
    assert (row["unfused_ms"], row["host_ms"], row["notes"]) == (None, None, "")
    assert row["softmax_ms"] > 0


def test_macs_of_the_host_are_those_of_its_cheaper_form():
    row = measure_row(Setting("castling_levit_128", 224, 16), repeats=1, memory=False)
    assert row["host_macs"] == pytest.approx(0.405e9, rel=1e-3)


def test_a_candidate_that_fails_is_an_empty_cell(monkeypatch, caplog):
    def build(setting, kind, threads, against):
        if kind == "softmax":
            raise RuntimeError("this engine knows no such operator\nand more")
        if kind == "unfused":
            return lambda: torch.empty(2**60)
        return lambda: kind

    monkeypatch.setattr(bench_models, "build_timed", build)
    with caplog.at_level(logging.WARNING):
        row = measure_row(LEVIT, repeats=1, memory=False)
    assert row["castled_ms"] > 0
    assert [row[name] for name in ("softmax_ms", "unfused_ms", "speedup_over_softmax", "bound_reached")] == [None] * 4
    assert (
        "softmax failed: RuntimeError: this engine knows no such operator; unfused failed: RuntimeError" in row["notes"]
    )
    assert "castling_levit_128 at 64 px, eager: softmax failed" in caplog.text


def test_a_missing_engine_ends_the_benchmark(monkeypatch):
    def build(*_):
        raise ImportError("openvino is missing")

    monkeypatch.setattr(bench_models, "build_timed", build)
    with pytest.raises(ImportError, match="openvino is missing"):
        measure_row(LEVIT, repeats=1, memory=False)


def test_maps_that_do_not_fit_are_not_tried(monkeypatch):
    setting = Setting(DEIT, 512, 16)
    # The map of three heads is 12 MiB, twice. Between what the two forms need, half of it is free.
    monkeypatch.setattr(bench_models, "forecast_memory", forecast_memory)
    monkeypatch.setattr(bench_models, "available_memory", lambda: 2 * 45.0)
    row = measure_row(setting, repeats=1, memory=False)
    assert row["softmax_ms"] > 0
    assert row["unfused_ms"] is None
    assert "unfused skipped: it needs 55 MiB, and half of the free memory is 45" in row["notes"]


def test_memory_that_cannot_be_measured_is_an_empty_cell(monkeypatch):
    def peak(target, arguments, threads):
        if arguments["kind"] == "castled":
            return PeakMemory(100.0, 150.0, 175.0)
        raise MemoryError("out of memory") if arguments["kind"] == "softmax" else RuntimeError("broken")

    monkeypatch.setattr(bench_models, "peak_memory", peak)
    row = measure_row(LEVIT, repeats=1)
    assert (row["castled_pass_mib"], row["castled_peak_mib"]) == (25.0, 75.0)
    assert (row["softmax_peak_mib"], row["unfused_peak_mib"]) == (None, None)
    assert "softmax has no memory: MemoryError: out of memory" in row["notes"]
    assert "unfused has no memory: RuntimeError: broken" in row["notes"]


def test_the_papers_numbers_stand_in_the_rows_that_they_belong_to():
    base = "castling_deit_base_patch16_224"
    cells = paper_cells(Setting(base, 1536, 16))
    assert cells == {
        "paper_softmax_images_per_s": "OOM",
        "paper_softmax_mb": "OOM",
        "paper_castled_images_per_s": "6",
        "paper_castled_mb": "15478",
    }
    assert paper_ratios(cells) == {"speedup": None, "saving": None}
    assert paper_ratios(paper_cells(Setting(DEIT, 224, 4))) == {"speedup": 103 / 40, "saving": None}
    assert paper_cells(Setting("castling_mvitv2_base", 512, 4))["paper_castled_mb"] == "1483"
    for setting in (Setting(base, 224, 16), Setting(base, 448, 8), Setting(LEVIT.model, 512, 16)):
        assert set(paper_cells(setting).values()) == {None}
