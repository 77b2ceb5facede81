"""`castling convert` on a network that was trained on digits a moment before."""

import json
from pathlib import Path

import pytest
import torch

from castling.cli.main import main
from castling.training import RunFolder, parse_recipe, train
from castling.training.linearize import Linearization, stage_recipes
from castling.training.saved import open_model

HOST = {
    "task": "classification",
    "model": {
        "name": "vit_tiny_patch16_224",
        "options": {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2},
    },
    "data": {"source": "digits", "image_size": 16, "channels": 1, "mean": [0.3], "std": [0.4], "crop_share": 1.0},
    "augment": {
        "auto_augment": None,
        "erasing": 0.0,
        "mixup": 0.0,
        "cutmix": 0.0,
        "flip": 0.0,
        "crop_scale": [0.9, 1.0],
    },
    "training": {
        "epochs": 10,
        "batch_size": 32,
        "learning_rate": {"peak": 3e-3, "warmup_epochs": 0.5},
        "workers": 0,
        "log_every": 5,
    },
}


def convert(*arguments):
    return main(["convert", *map(str, arguments)])


@pytest.fixture(scope="module")
def host_run(tmp_path_factory):
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("host") / "run"
    train(parse_recipe(HOST), folder)
    return folder


@pytest.fixture(scope="module")
def converted(host_run, tmp_path_factory):
    out = tmp_path_factory.mktemp("converted") / "out"
    assert convert(host_run, "--out", out, "--epochs", 1, 1, 1, "--sizes", 16, 32) == 0
    return out


def test_three_stages_follow_each_other(converted):
    steps = {}
    for stage in ("attention", "features", "task"):
        lines = list(RunFolder(converted / stage).log_lines())
        steps[stage] = [line for line in lines if line["kind"] == "step"]
    assert {line["blend"] for line in steps["attention"]} == {1.0}
    blends = [line["blend"] for line in steps["features"]]
    assert blends[0] == 0.0
    assert blends[-1] == 1.0
    assert {line["blend"] for line in steps["task"]} == {1.0}
    # Each layer has its line, and learns.
    first, last = steps["attention"][0]["parts"], steps["attention"][-1]["parts"]
    assert set(first) == {"blocks.0.attn", "blocks.1.attn"}
    assert sum(last.values()) < sum(first.values())
    assert set(steps["features"][0]["parts"]) == {"blocks.0", "blocks.1"}
    assert set(steps["task"][0]["parts"]) == {"label_loss", "teacher_loss"}


def test_three_networks_are_compared_at_every_size_and_the_castled_one_is_kept(converted, host_run):
    certificate = json.loads((converted / "task" / "castled" / "certificate.json").read_text())
    assert certificate["attentions"] == 2
    assert set(certificate["sizes"]) == {"16", "32"}
    at_home = certificate["sizes"]["16"]
    assert at_home["original"]["top1"] == RunFolder(host_run).summary()["model"]["top1"]
    assert at_home["castled"] == pytest.approx(at_home["converted"])  # there is no branch to lose
    assert at_home["castled"]["top1"] > 0.5
    saved = open_model(converted / "task" / "castled")
    task = saved.recipe.make_task()
    found = task.evaluate(saved.model, task.build_loader("val", 64))
    assert found["top1"] == at_home["castled"]["top1"]


def test_called_again_it_trains_nothing(converted, host_run, capsys):
    before = (converted / "features" / "log.jsonl").stat().st_mtime_ns
    assert convert(host_run, "--out", converted) == 0
    assert (converted / "features" / "log.jsonl").stat().st_mtime_ns == before
    printed = capsys.readouterr().out
    assert "castled" in printed
    assert "--local-conv grid" not in printed
    assert convert(host_run, "--out", converted, "--sizes", 32) == 0
    assert "--local-conv grid" in capsys.readouterr().out
    assert convert(host_run, "--out", converted, "--learning-rate", 1.0) == 2
    assert "was begun with other settings" in capsys.readouterr().err


def test_a_converted_network_is_exported(converted, tmp_path):
    out = tmp_path / "model.onnx"
    assert main(["export", str(converted / "task"), "--format", "onnx", "--out", str(out)]) == 0
    assert out.is_file()


def test_a_part_of_the_attentions_from_weights_alone(converted, tmp_path, capsys):
    recipe = tmp_path / "host.yaml"
    recipe.write_text(json.dumps(HOST))
    weights = converted / "original.safetensors"
    flags = ["--stages", "task", "--teacher", "none", "--only", "blocks.1.attn", "--weights", weights]
    assert convert(recipe, "--out", tmp_path / "out", *flags, "--local-conv", "grid") == 0
    saved = open_model(tmp_path / "out" / "task")
    assert saved.model.blocks[1].attn.local_conv.weight.shape[-2:] == (3, 3)
    assert type(saved.model.blocks[0].attn).__name__ == "Attention"
    assert saved.recipe.settings.distillation is None
    assert "1 attentions castled" in capsys.readouterr().out


def test_recipes_of_stages():
    base = parse_recipe(HOST)
    settings = Linearization(("features", "task"), (2, 3), rate=1e-4)
    features, task = stage_recipes(base, Path("out"), settings, ["seed=5"])
    assert (features.settings.objective, task.settings.objective) == ("features", "task")
    assert (features.training.epochs, task.training.epochs, task.seed) == (2, 3, 5)
    assert features.settings.model.convert.start is None
    assert task.settings.model.convert.start == "out/features/converted.safetensors"
    assert task.settings.distillation.model == "self"
    assert (features.training.blend(0.0), features.training.blend(0.5), task.training.blend(0.0)) == (0.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--stages", "task", "features"], "in this order; got task, features"),
        (["--stages", "attention"], "add features or task"),
        (["--epochs", 1], "epochs must be 3 numbers"),
        (["--weights", "x.pt"], "--weights is for a recipe"),
        (["model.nam=x"], "unknown key 'model.nam'"),
        (["--only", "blocks.7.attn"], "no attention has the name 'blocks.7.attn'"),
    ],
)
def test_bad_input(host_run, tmp_path, flags, message, capsys):
    assert convert(host_run, "--out", tmp_path / "out", *flags) == 2
    assert message in capsys.readouterr().err


def test_bad_originals(tmp_path, capsys):
    assert convert("runs/nowhere", "--out", tmp_path) == 2
    assert "there is no run folder runs/nowhere" in capsys.readouterr().err
    values = {**HOST, "objective": "features"}
    with pytest.raises(ValueError, match="only a converted network has an original"):
        parse_recipe(values)
