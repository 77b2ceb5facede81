"""`castling bench` from flags to files, in this process."""

import json

import pytest
import torch

from castling.bench import candidates as bench_candidates
from castling.bench import models as bench_models
from castling.bench.results_file import read_rows
from castling.cli import bench as bench_command
from castling.cli.main import main
from castling.measure.memory import PeakMemory, peak_memory

LEVIT = ("--models", "castling_levit_128", "--patches")
KINDS = ("castled", "softmax", "host", "unfused")
TIMES = ("ms", "lower_quartile_ms", "upper_quartile_ms")


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch):
    monkeypatch.setattr(bench_command, "describe_environment", lambda: {"commit": "0123456789ab"})
    monkeypatch.setattr(bench_models, "TOTAL_SECONDS", 0.0)


def bench(*arguments):
    return main(["bench", *map(str, arguments)])


@pytest.fixture
def broken_openvino(monkeypatch):
    """Engines of which one refuses every network."""

    real = bench_candidates.on_engine

    def on_engine(model, example, engine, threads=None):
        if engine == "openvino":
            raise RuntimeError("unsupported operator")
        return real(model, example, engine, threads)

    monkeypatch.setattr(bench_candidates, "on_engine", on_engine)


@pytest.fixture
def one_process(monkeypatch):
    """Memory of castled networks is measured in a process of its own, as always; that of others is made up."""

    def peak(target, arguments, threads):
        if arguments["kind"] == "castled":
            return peak_memory(target, arguments, threads)
        return PeakMemory(100.0, 200.0, 300.0)

    monkeypatch.setattr(bench_models, "peak_memory", peak)


def results(folder):
    (path,) = folder.glob("*.csv")
    return path, read_rows(path)


@pytest.mark.slow
def test_models_writes_rows_figure_and_json_and_goes_on(tmp_path, one_process, capsys):
    assert bench("models", *LEVIT, "--sizes", 64, "--out", tmp_path) == 0
    path, (row,) = results(tmp_path)
    assert path.name.startswith("models-")
    assert (row["model"], row["size"], row["patch"], row["tokens"]) == ("castling_levit_128", "64", "16", "16")
    measured = [f"{kind}_{what}" for kind in KINDS for what in (*TIMES, "peak_mib")]
    measured += ["speedup_over_softmax", "speedup_over_host", "speedup_over_unfused", "castled_macs"]
    measured += ["softmax_macs", "host_macs", "mac_bound"]
    measured += ["bound_reached", "processor", "torch", "commit", "threads", "command"]
    assert {name: row[name] for name in measured if not row[name]} == {}
    assert {row[f"against_{what}"] for what in (*TIMES, "peak_mib", "macs")} == {""}
    assert 10 < float(row["castled_peak_mib"]) < 500
    assert (row["softmax_pass_mib"], row["softmax_peak_mib"]) == ("100", "200")
    shown = capsys.readouterr().out
    assert "levit_128" in shown
    assert f"wrote {path}" in shown
    assert path.with_name(f"{path.stem}-resolution.png").stat().st_size > 5000

    assert bench("models", *LEVIT, "--sizes", 64, "--out", tmp_path) == 2
    assert "go on with it with --resume" in capsys.readouterr().err
    assert bench("models", *LEVIT, "--sizes", 64, 96, "--no-memory", "--out", tmp_path, "--resume") == 0
    _, rows = results(tmp_path)
    assert [row["size"] for row in rows] == ["64", "96"]
    assert rows[0] == row
    assert rows[1]["castled_peak_mib"] == ""
    content = json.loads(path.with_suffix(".json").read_text())
    assert [line["size"] for line in content["rows"]] == [64, 96]
    assert content["rows"][0]["castled_ms"] == float(row["castled_ms"])


@pytest.mark.slow
def test_an_engine_that_refuses_leaves_empty_cells(tmp_path, broken_openvino, capsys):
    engines = ("--engines", "openvino", "eager", "--threads", 1)
    assert bench("models", *LEVIT, "--sizes", 64, *engines, "--no-memory", "--out", tmp_path) == 0
    _, (refused, measured) = results(tmp_path)
    assert (refused["engine"], refused["castled_ms"], refused["mac_bound"]) == ("openvino", "", measured["mac_bound"])
    assert "castled failed: RuntimeError: unsupported operator" in refused["notes"]
    assert float(measured["castled_ms"]) > 0
    assert "unsupported operator" in capsys.readouterr().out


@pytest.mark.slow
def test_against_a_model_of_timms(tmp_path, capsys):
    arguments = ("--sizes", 64, "--no-memory", "--against", "resnet18", "--out", tmp_path)
    assert bench("models", *LEVIT, *arguments) == 0
    _, (row,) = results(tmp_path)
    assert row["against"] == "resnet18"
    assert float(row["speedup_over_against"]) == pytest.approx(
        float(row["against_ms"]) / float(row["castled_ms"]), rel=1e-4
    )
    assert int(row["against_macs"]) == pytest.approx(1.814e9 * (64 / 224) ** 2, rel=0.01)
    assert "against" in capsys.readouterr().out


@pytest.mark.slow
def test_against_an_onnx_file(tmp_path):
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    relu = onnx.helper.make_node("Relu", ["image"], ["out"])
    ends = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 3, 64, 64]) for name in ("image", "out")
    ]
    graph = onnx.helper.make_graph([relu], "relu", ends[:1], ends[1:])
    opset = [onnx.helper.make_opsetid("", 18)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=9), tmp_path / "relu.onnx")
    arguments = ("--no-memory", "--against", tmp_path / "relu.onnx", "--out", tmp_path / "out")
    assert bench("models", *LEVIT, "--sizes", 64, 80, *arguments) == 0
    _, (fitting, other) = results(tmp_path / "out")
    assert float(fitting["against_ms"]) > 0
    assert (other["against_ms"], float(other["castled_ms"]) > 0) == ("", True)
    assert "relu.onnx takes an image [1, 3, 64, 64], not [1, 3, 80, 80]" in other["notes"]


@pytest.mark.slow
def test_attention_writes_a_row_per_kernel_and_the_crossovers(tmp_path, capsys):
    threads = torch.get_num_threads()
    flags = ("--tokens", 16, 64, "--head-dims", 8, 16, "--threads", 1, 2, "--heads", 1)
    assert bench("attention", *flags, "--kernels", "cosine", "relu_s", "--out", tmp_path) == 0
    assert torch.get_num_threads() == threads
    path, rows = results(tmp_path)
    assert path.name.startswith("crossover-")
    keys = {tuple(row[name] for name in ("kernel", "tokens", "head_dim", "threads")) for row in rows}
    assert len(rows) == len(keys) == 16
    content = json.loads(path.with_suffix(".json").read_text())
    assert len(content["crossovers"]) == 8
    assert {line["crossover"] for line in content["crossovers"]} <= {16, 64, None}
    shown = capsys.readouterr().out
    assert shown.count("relu_s is faster than softmax") == 4
    assert "1 heads of 16 channels, batch 1, float32, 2 threads" in shown


def test_attention_leaves_large_maps_out(monkeypatch, capsys):
    monkeypatch.setattr("castling.bench.attention.MOST_QUADRATIC_TOKENS", 16)
    assert bench("attention", "--tokens", 16, 32, "--heads", 1, "--head-dims", 8, "--kernels", "angular", "relu_s") == 0
    shown = capsys.readouterr().out
    assert "angular is faster than softmax" in shown
    small, large = (line for line in shown.splitlines() if line.startswith(("│     16 │", "│     32 │")))
    assert (small.count("x │"), large.count("x │")) == (3, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("models", "--models", "resnet18"), "no model matches 'resnet18'; there are castling_deit_base"),
        (("models", "--models", "deit_tiny", "--sizes", 100), "nearest sizes are 96 x 96 and 112 x 112"),
        (("models", "--models", "deit_tiny", "--patches", 15), "does not fit patches of 15 x 15"),
        (("models", "--against", "resnet"), "an .onnx file or a model of timm's; got 'resnet'"),
        (("models", "--against", "none.onnx"), "there is no file none.onnx"),
        (("models", "--repeats", 4), "repeats must be at least 7, for medians with quartiles; got 4"),
        (("models", "--models", "deit_tiny", "--batches", 0), "batches must be at least 1"),
        (("models", "--threads", 0), "threads must be at least 1; got 0"),
        (("attention", "--repeats", 1, "--out", "out"), "repeats must be at least 7"),
        (("attention", "--threads", 0), "must be at least 1; got"),
    ],
)
def test_bad_input_is_refused_before_anything_is_measured(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert bench(*arguments) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_rows_of_files_that_are_in_no_commit_are_asked_for(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench_command, "describe_environment", lambda: {"commit": "0123456789ab-dirty"})
    flags = ("models", *LEVIT, "--sizes", 64, "--no-memory", "--without", "host", "unfused", "--out", tmp_path / "out")
    assert bench(*flags) == 2
    assert "commit them, or measure with --uncommitted" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert bench(*flags, "--uncommitted", "--batches", 1, 2) == 0
    _, rows = results(tmp_path / "out")
    assert [row["batch"] for row in rows] == ["1", "2"]
