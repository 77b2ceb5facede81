import json
import shutil

import pytest
import timm
import torch
from safetensors.torch import save_file

from castling import castle
from castling.cli.main import main
from castling.exporting import open_export, read_metadata
from castling.workflows import exporting

pytestmark = pytest.mark.slow


def export(*arguments):
    return main(["export", *map(str, arguments)])


@pytest.fixture(scope="module")
def run_folder(digits_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "digits"
    shutil.copytree(digits_run, folder)
    return folder


@pytest.fixture(scope="module")
def castled_folder(run_folder):
    return run_folder / "castled"


def test_a_run_that_is_not_castled_is_refused_with_advice(run_folder, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(run_folder, folder, ignore=shutil.ignore_patterns("castled"))
    assert export(folder) == 2
    assert f"is not castled; run first: castling castle {folder}" in capsys.readouterr().err
    assert export(folder, "--format", "torch_export", "--with-branch") == 0
    assert read_metadata(folder / "model.pt2").castled is False
    assert "softmax operators" in capsys.readouterr().out


def test_a_castled_run_is_written_into_its_folder(run_folder, castled_folder, capsys):
    assert export(run_folder, "--format", "onnx") == 0
    path = castled_folder / "model.onnx"
    shown = capsys.readouterr().out
    for text in ("1x1x32x32", "batch, height, width", "none (N = ", "% native", f"wrote {path}"):
        assert text in shown
    metadata = read_metadata(path)
    assert metadata.facts == {"labels": list("0123456789")}
    assert (metadata.preprocessing["mean"], metadata.preprocessing["crop_share"]) == ([0.305], 1.0)
    assert (metadata.task, metadata.channels, metadata.castled) == ("classification", 1, True)
    assert open_export(path).run(torch.zeros(5, 1, 40, 32)).shape == (5, 10)


@pytest.mark.slow
def test_int8_has_a_card(castled_folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(exporting, "NUM_CALIBRATION", 8)
    out = tmp_path / "digits.xml"
    assert (
        export(castled_folder, "--format", "openvino", "--int8", "--allow-slower", "--max-loss", 50, "--out", out) == 0
    )
    names = ["digits.bin", "digits.xml", "digits_int8.bin", "digits_int8.json", "digits_int8.xml"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    card = json.loads((tmp_path / "digits_int8.json").read_text())
    before, after = (card[f"metric_{side}"] for side in ("before", "after"))
    assert before["name"] == after["name"] == "top1"
    assert card["lost"] == pytest.approx(100 * (before["value"] - after["value"]))
    assert (tmp_path / "digits_int8.bin").stat().st_size < (tmp_path / "digits.bin").stat().st_size
    assert f"{100 * before['value']:.2f} % to {100 * after['value']:.2f} %" in capsys.readouterr().out


@pytest.mark.slow
def test_a_name_with_weights(tmp_path, capsys):
    model = timm.create_model("castling_deit_tiny_patch16_224", num_classes=7)
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    out = tmp_path / "model.pt2"
    flags = ("--format", "torch_export", "--static", "--size", "32x48", "--batch", 2, "--out", out)
    assert export("castling_deit_tiny_patch16_224", "--weights", tmp_path / "weights.safetensors", *flags) == 0
    x = torch.randn(2, 3, 32, 48)
    torch.testing.assert_close(open_export(out).run(x), castle(model).eval()(x).detach(), atol=1e-4, rtol=1e-4)
    assert export("castling_levit_128", "--weights", tmp_path / "weights.safetensors", *flags) == 2
    assert "does not fit castling_levit_128" in capsys.readouterr().err


def test_a_file_that_differs_is_removed_and_the_exit_code_is_1(castled_folder, tmp_path, capsys):
    out = tmp_path / "model.onnx"
    assert export(castled_folder, "--static", "--tolerance", -1, "--out", out) == 1
    assert "more than the tolerance of -1" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["castling_levit_1288"], "did you mean 'castling_levit_128'"),
        (["runs/nowhere"], "there is no run folder runs/nowhere"),
        (["castling_levit_128", "--batch", 0], "batch must be at least 1; got 0"),
        (["castling_levit_128", "--format", "openvino", "--int8"], "--int8 needs --format openvino, and a run"),
        (["castling_levit_128", "--out", "model.xml"], "a file of format onnx ends in .onnx; got model.xml"),
        (["castling_levit_128", "--weights", "nowhere.pt"], "there is no file nowhere.pt"),
    ],
)
def test_bad_input_is_one_line(arguments, message, capsys):
    assert export(*arguments) == 2
    assert message in capsys.readouterr().err


def test_bad_flags(capsys):
    for flags, message in ((["--size", "12by"], "expected HxW"), (["--format", "onx"], "invalid choice: 'onx'")):
        with pytest.raises(SystemExit):
            export("castling_levit_128", *flags)
        assert message in capsys.readouterr().err


def test_softmax_attention_is_said(tmp_path, capsys):
    assert export("vit_tiny_patch16_224", "--format", "torch_export", "--size", 32, "--out", tmp_path / "x.pt2") == 0
    assert "This file has softmax attention" in capsys.readouterr().out


def test_a_convolutional_network_takes_another_size(tmp_path):
    assert export("resnet18", "--format", "torch_export", "--size", "64x96", "--out", tmp_path / "x.pt2") == 0


def test_a_place_that_cannot_be_written_is_said_before_the_work(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("castling.exporting.write.capture", lambda *args: pytest.fail("began to work"))
    (tmp_path / "file").touch()
    (tmp_path / "x.onnx").mkdir()
    for out in (tmp_path / "file" / "x.onnx", tmp_path / "x.onnx", "/proc/castling/x.onnx"):
        assert export("resnet18", "--out", out) == 2
        assert f"{out} cannot be written: " in capsys.readouterr().err
