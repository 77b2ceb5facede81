"""A task that no file of the package knows goes all the way: the interface is whole."""

import json
import signal
import time

import numpy as np
import pytest
import torch
from forked import run_in_two, start
from PIL import Image

from castling import castle
from castling.cli.main import main
from castling.training import RunFolder, parse_recipe, train
from castling.training.checkpoint import checkpoint_folders, load_best
from castling.training.recipe import recipe_text
from castling.training.saved import open_model

RECIPE = {
    "task": "proof_task:Proof",
    "model": {
        "name": "castling_deit_tiny_patch16_224",
        "attention": {"threshold": 0.05},
        "options": {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2},
    },
    "data": {"image_size": 16, "channels": 1, "mean": [0.0], "std": [1.0], "crop_share": 1.0},
    "training": {
        "epochs": 4,
        "batch_size": 16,
        "learning_rate": {"peak": 1e-2},
        "threshold": {"kind": "linear", "start": 0.05, "end": 1.0, "until": 0.7},
        "workers": 0,
        "log_every": 1,
    },
}


@pytest.fixture(scope="module")
def recipe():
    return parse_recipe(RECIPE)


@pytest.fixture(scope="module")
def run_folder(recipe, tmp_path_factory):
    folder = tmp_path_factory.mktemp("second") / "run"
    train(recipe, folder)
    return folder


@pytest.fixture(scope="module")
def castled_folder(run_folder):
    assert main(["castle", str(run_folder), "--tolerance", "0.5"]) == 0
    return run_folder / "castled"


def test_it_trains_and_less_is_better(run_folder):
    evals = RunFolder(run_folder).evals()
    assert [metric.name for metric in evals[0].model] == ["median_error", "largest_error"]
    values = [record.castled[0].value for record in evals]
    assert values[-1] < values[0]
    assert load_best(run_folder / "checkpoints").step == evals[values.index(min(values))].step
    assert set(RunFolder(run_folder).steps()[0].parts) == {"bright", "varied"}
    assert json.loads((run_folder / "facts.json").read_text()) == {"patch": 4}


def begin_or_go_on(recipe_file, folder):
    run = RunFolder(folder)
    if run.is_run():
        train(run.recipe(), folder, resume=True)
    else:
        from castling.training import load_recipe

        train(load_recipe(recipe_file), folder)


@pytest.mark.slow
def test_it_is_killed_and_goes_on_bit_equal(recipe, tmp_path):
    (tmp_path / "recipe.yaml").write_text(recipe_text(recipe))
    killed = start(begin_or_go_on, tmp_path / "recipe.yaml", tmp_path / "killed")
    log = tmp_path / "killed" / "log.jsonl"
    while killed.is_alive() and (not log.is_file() or log.read_bytes().count(b"\n") < 6):
        time.sleep(0.001)
    killed.kill()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    for name in ("killed", "calm"):
        process = start(begin_or_go_on, tmp_path / "recipe.yaml", tmp_path / name)
        process.join()
        assert process.exitcode == 0
    assert log.read_bytes() == (tmp_path / "calm" / "log.jsonl").read_bytes()
    ends = [checkpoint_folders(tmp_path / name / "checkpoints")[-1] for name in ("killed", "calm")]
    for file in ends[0].iterdir():
        assert file.read_bytes() == (ends[1] / file.name).read_bytes()


@pytest.mark.slow
def test_two_processes_gather_what_cannot_be_summed(recipe, tmp_path):
    text = recipe_text(recipe).replace("epochs: 4", "epochs: 1")
    (tmp_path / "recipe.yaml").write_text(text)
    assert run_in_two("train", tmp_path / "recipe.yaml", "--out", tmp_path / "two") == [0, 0]
    assert main(["train", str(tmp_path / "recipe.yaml"), "--out", str(tmp_path / "one")]) == 0
    two, one = (RunFolder(tmp_path / name).evals()[-1] for name in ("two", "one"))
    assert [metric.value for metric in two.model] == pytest.approx([metric.value for metric in one.model], abs=1e-4)


def test_it_castles_with_a_certificate_in_its_own_words(run_folder, castled_folder, capsys):
    certificate = json.loads((run_folder / "certificate.json").read_text())
    assert certificate["verdict"] == "free"
    assert certificate["unit"] == "shades"
    with_branch, castled = (certificate["networks"][name] for name in ("with branch", "castled"))
    assert with_branch["metrics"] == castled["metrics"]
    assert with_branch["metrics"][0]["higher_is_better"] is False
    assert with_branch["agreement"] == 1
    assert certificate["quadratic_tensors"] == []
    assert len(certificate["layers"][0]["history"][0][1]) == 2  # heads


def test_a_rise_of_what_should_be_small_is_a_loss(run_folder, tmp_path):
    import shutil

    folder = tmp_path / "run"
    shutil.copytree(run_folder, folder, ignore=shutil.ignore_patterns("castled", "certificate.json"))
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text.replace("end: 1.0", "end: 0.0").replace("start: 0.05", "start: 0.0"))
    code = main(["castle", str(folder), "--tolerance", "0"])
    certificate = json.loads((folder / "certificate.json").read_text())
    values = [certificate["networks"][name]["metrics"][0]["value"] for name in ("with branch", "castled")]
    assert certificate["lost"] == pytest.approx(values[1] - values[0])
    assert certificate["verdict"] == ("not yet" if certificate["lost"] > 0 else "cheap")
    assert code == int(certificate["verdict"] == "not yet")
    assert (folder / "castled").exists() == (code == 0)


def test_it_is_evaluated(run_folder, castled_folder, capsys):
    capsys.readouterr()
    assert main(["evaluate", str(castled_folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["model"]["median_error"] == pytest.approx(RunFolder(run_folder).summary()["castled"]["median_error"])
    assert main(["evaluate", str(run_folder)]) == 0
    assert "median_error" in capsys.readouterr().out


def test_it_looks_at_pictures(castled_folder, tmp_path, capsys):
    Image.fromarray(np.full((16, 16), 200, np.uint8)).save(tmp_path / "light.png")
    capsys.readouterr()
    command = ["predict", str(tmp_path / "light.png"), "--model", str(castled_folder)]
    assert main([*command, "--draw", str(tmp_path / "drawn"), "--set", "scale=2"]) == 0
    assert "brightness" in capsys.readouterr().out
    assert (tmp_path / "drawn" / "0000-light.png").is_file()
    assert main([*command, "--set", "top=2"]) == 2
    assert "unknown key 'top'" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["pt2", "onnx"])
def test_it_is_exported_with_both_outputs(castled_folder, tmp_path, suffix):
    from castling.exporting import open_export, read_metadata
    from castling.measure.trees import named_leaves

    if suffix == "onnx":
        pytest.importorskip("onnxruntime")
    out = tmp_path / f"model.{suffix}"
    form = {"pt2": "torch_export", "onnx": "onnx"}[suffix]
    assert main(["export", str(castled_folder), "--format", form, "--out", str(out)]) == 0
    images = torch.rand(2, 1, 16, 16)
    wanted = castle(open_model(castled_folder).network)(images)
    found = named_leaves(open_export(out).run(images))
    assert list(found) == ["bright", "varied"]
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value.detach(), atol=1e-4, rtol=0)
    metadata = read_metadata(out)
    assert (metadata.facts, metadata.outputs) == ({"patch": 4}, ("bright", "varied"))


def test_it_is_reported(run_folder, castled_folder):
    assert main(["report", str(run_folder), "--sizes", "16", "32"]) == 0
    page = (run_folder / "report.html").read_text()
    assert "median_error stays at" in page
    assert "shades" in page
    assert "Castling is free" in page
