"""`castling convert` on a network that was trained on digits a moment before, and on pictures without labels."""

import json
import shutil

import numpy as np
import pytest
import timm
import torch
from forked import run_in_two
from PIL import Image
from safetensors.torch import save_file

from castling.cli.main import main
from castling.training import RunFolder, parse_recipe, train
from castling.training.evaluation import evaluate
from castling.training.saved import open_model
from castling.workflows import playing
from castling.workflows.playing import Player

pytestmark = pytest.mark.slow

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
TINY_NAME = "vit_tiny_patch16_224"


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
    assert convert(host_run, "--out", out, "--epochs", 1, 1, 1, "--sizes", 32, "--tolerance", 50) == 0
    return out


def test_the_playground_shows_the_original_beside_the_castled_network(converted, host_run, monkeypatch):
    noise = np.random.default_rng(0).integers(0, 256, (16, 16), np.uint8)
    answer = Player(converted / "finetune").look(noise)
    assert [one.network for one in answer.looks] == ["original", "castled"]
    wanted = [open_model(path).predict(noise)[0].line() for path in (host_run, converted / "finetune" / "castled")]
    assert [f"0: {one.said}" for one in answer.looks] == wanted
    assert answer.agreement in (0, 1)

    def gone(saved, task):
        raise FileNotFoundError("original.safetensors")

    monkeypatch.setattr(playing, "networks_of", gone)
    assert [one.network for one in Player(converted / "finetune").look(noise).looks] == ["as trained", "softmax twin"]


def test_three_stages_follow_each_other(converted):
    steps = {stage: RunFolder(converted / stage).steps() for stage in ("attention", "features", "finetune")}
    assert {record.blend for record in steps["attention"]} == {1.0}
    blends = [record.blend for record in steps["features"]]
    assert (blends[0], blends[-1]) == (0.0, 1.0)
    assert {record.blend for record in steps["finetune"]} == {1.0}
    # Each layer has its line, and learns.
    first, last = steps["attention"][0].parts, steps["attention"][-1].parts
    assert set(first) == {"blocks.0.attn", "blocks.1.attn"}
    assert sum(last.values()) < sum(first.values())
    assert set(steps["features"][0].parts) == {"blocks.0", "blocks.1"}
    assert set(steps["finetune"][0].parts) == {"label_loss", "teacher_loss"}


def test_three_networks_are_certified_at_every_size_and_the_castled_one_is_kept(converted, host_run):
    certificate = json.loads((converted / "finetune" / "castled" / "certificate.json").read_text())
    networks = certificate["networks"]
    assert list(networks) == ["original", "converted", "castled"]
    values = {name: report["metrics"][0]["value"] for name, report in networks.items()}
    assert values["original"] == RunFolder(host_run).summary()["model"]["top1"]
    assert values["castled"] == values["converted"] > 0.5  # there is no branch to lose
    assert certificate["lost"] == pytest.approx(100 * (values["original"] - values["castled"]))
    assert certificate["verdict"] == "cheap"
    assert certificate["quadratic_tensors"] == []
    assert set(certificate["sizes"]) == {"32"}
    saved = open_model(converted / "finetune" / "castled")
    found = evaluate(saved.task, saved.network, saved.task.loader("val", 64))
    assert found.model[0].value == values["castled"]


def test_called_again_it_trains_nothing(converted, host_run, capsys):
    before = (converted / "features" / "log.jsonl").stat().st_mtime_ns
    assert convert(host_run, "--out", converted, "--tolerance", 50) == 0
    assert (converted / "features" / "log.jsonl").stat().st_mtime_ns == before
    printed = capsys.readouterr().out
    assert "castled" in printed
    assert "--local-conv grid" not in printed
    assert convert(host_run, "--out", converted, "--sizes", 32, "--tolerance", 50) == 0
    certificate = converted / "finetune" / "certificate.json"
    first, measured = capsys.readouterr().out, certificate.stat().st_mtime_ns
    assert "--local-conv grid" in first
    assert convert(host_run, "--out", converted, "--sizes", 32, "--tolerance", 50) == 0
    assert certificate.stat().st_mtime_ns == measured  # nor is the same measured again
    assert capsys.readouterr().out.splitlines()[-8:] == first.splitlines()[-8:]
    assert convert(host_run, "--out", converted, "--learning-rate", 1.0) == 2
    assert "was begun with other settings" in capsys.readouterr().err


def test_above_the_tolerance_no_castled_weights_are_written(converted, host_run, tmp_path, capsys):
    out = tmp_path / "out"
    shutil.copytree(converted, out, ignore=shutil.ignore_patterns("castled"))
    for stage in ("attention", "features", "finetune"):  # the copies know where they are
        config = out / stage / "config.yaml"
        config.write_text(config.read_text().replace(str(converted), str(out)))
    capsys.readouterr()
    certificate = json.loads((converted / "finetune" / "certificate.json").read_text())
    assert certificate["lost"] > 0
    assert convert(host_run, "--out", out, "--tolerance", 0) == 1
    assert "no castled weights were written" in capsys.readouterr().out
    assert not (out / "finetune" / "castled").exists()


def test_a_converted_run_can_be_castled_again_and_reported(converted, capsys):
    assert main(["castle", str(converted / "finetune"), "--tolerance", "50"]) == 0
    assert "original" in capsys.readouterr().out
    assert main(["report", str(converted / "finetune"), "--sizes", "16", "32"]) == 0
    page = (converted / "finetune" / "report.html").read_text()
    assert "Converted at a small price" in page
    assert len(json.loads((converted / "finetune" / "speed.json").read_text())["rows"]) == 2


def test_a_converted_network_is_exported(converted, tmp_path):
    out = tmp_path / "model.pt2"
    assert main(["export", str(converted / "finetune"), "--format", "torch_export", "--out", str(out)]) == 0
    assert out.is_file()


def test_a_part_of_the_attentions_from_weights_alone(converted, tmp_path):
    recipe = tmp_path / "host.yaml"
    recipe.write_text(json.dumps(HOST))
    flags = ["--stages", "finetune", "--teacher", "none", "--only", "blocks.1.attn", "--tolerance", 100]
    flags += ["--weights", converted / "original.safetensors", "--local-conv", "grid", "training.batch_size=256"]
    flags += ["--kernel", "mean_centred", "--output-norm", "none", "--rotary"]
    assert convert(recipe, "--out", tmp_path / "out", *flags) == 0
    saved = open_model(tmp_path / "out" / "finetune")
    assert saved.network.blocks[1].attn.local_conv.weight.shape[-2:] == (3, 3)
    assert type(saved.network.blocks[0].attn).__name__ == "Attention"
    config = saved.network.blocks[1].attn.config
    assert (config.kernel, config.output_norm, config.rotary) == ("mean_centred", "none", True)
    assert saved.recipe.settings.distillation is None
    certificate = json.loads((tmp_path / "out" / "finetune" / "certificate.json").read_text())
    assert (certificate["kept_softmax"], certificate["quadratic_tensors"]) == (["blocks.0.attn"], [])


def test_the_branch_opens_and_closes(host_run, tmp_path):
    flags = ["--stages", "finetune", "--aux", "--threshold", 0.01, "--tolerance", 100]
    assert convert(host_run, "--out", tmp_path / "out", *flags) == 0
    run = RunFolder(tmp_path / "out" / "finetune")
    thresholds = [record.threshold for record in run.steps()]
    assert (thresholds[0], thresholds[-1]) == (0.01, 1.0)
    certificate = json.loads((run.path / "certificate.json").read_text())
    assert all(layer["opened"] and max(layer["occupancy"]) == 0 for layer in certificate["layers"])
    networks = certificate["networks"]
    assert networks["converted"]["largest_difference"] == 0  # the mask is empty
    assert networks["converted"]["macs"] > networks["castled"]["macs"]


def test_the_last_stage_at_the_size_of_use(host_run, tmp_path):
    flags = ["--stages", "features", "finetune", "--train-size", 32, "--sizes", 16, "--tolerance", 100]
    assert convert(host_run, "--out", tmp_path / "out", *flags, "training.batch_size=256") == 0
    first, last = (open_model(tmp_path / "out" / stage) for stage in ("features", "finetune"))
    assert (first.network.pos_embed.shape[1], last.network.pos_embed.shape[1]) == (17, 65)
    assert last.recipe.settings.data.image_size == 32
    certificate = json.loads((tmp_path / "out" / "finetune" / "certificate.json").read_text())
    assert set(certificate["sizes"]) == {"16"}


@pytest.fixture
def photos(tmp_path):
    """Pictures without labels, in a folder of no form."""
    folder = tmp_path / "photos" / "deep"
    folder.mkdir(parents=True)
    for number in range(40):
        noise = np.random.default_rng(number).integers(0, 256, (4, 4, 3), np.uint8)
        Image.fromarray(noise).resize((32, 32)).save(folder / f"{number}.png")
    return tmp_path / "photos"


FEW = ("training.max_steps=3", "training.batch_size=8", "training.workers=0", "training.log_every=1")


def test_a_name_with_weights_needs_no_labels(photos, tmp_path, capsys):
    network = timm.create_model(TINY_NAME, depth=2, num_classes=5)
    save_file(network.state_dict(), tmp_path / "vit.safetensors")
    flags = ["--weights", tmp_path / "vit.safetensors", "--data", photos, "--tolerance", 100]
    assert convert(TINY_NAME, "--out", tmp_path / "out", *flags, *FEW, "model.options.depth=2") == 0
    assert not (tmp_path / "out" / "finetune").exists()
    certificate = json.loads((tmp_path / "out" / "features" / "certificate.json").read_text())
    metric = certificate["networks"]["castled"]["metrics"][0]
    assert (metric["name"], metric["higher_is_better"]) == ("error", False)
    assert certificate["networks"]["original"]["metrics"][0]["value"] == 0
    capsys.readouterr()
    picture = photos / "deep" / "0.png"
    assert main(["predict", str(picture), "--model", str(tmp_path / "out" / "features" / "castled")]) == 0
    assert "5 numbers" in capsys.readouterr().out


def test_two_processes_go_through_all_stages(photos, tmp_path):
    network = timm.create_model(TINY_NAME, depth=1, num_classes=5)
    save_file(network.state_dict(), tmp_path / "vit.safetensors")
    flags = ["--weights", tmp_path / "vit.safetensors", "--data", photos, "--tolerance", 100]
    assert run_in_two("convert", TINY_NAME, "--out", tmp_path / "out", *flags, *FEW, "model.options.depth=1") == [0, 0]
    assert [RunFolder(tmp_path / "out" / stage).steps()[-1].step for stage in ("attention", "features")] == [2, 2]
    assert open_model(tmp_path / "out" / "features" / "castled").network.num_classes == 5


def test_a_folder_of_transformers(photos, tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, image_size=32, patch_size=8
    )
    transformers.ViTModel(config).save_pretrained(tmp_path / "vit")
    flags = ["--data", photos, "--stages", "features", "--tolerance", 100]
    assert convert(tmp_path / "vit", "--out", tmp_path / "out", *flags, *FEW) == 0
    shutil.rmtree(tmp_path / "vit")  # a castled network does not need it
    saved = open_model(tmp_path / "out" / "features" / "castled")
    assert saved.network(torch.zeros(1, 3, 32, 32)).shape == (1, 32)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--stages", "finetune", "features"], "in this order; got finetune, features"),
        (["--stages", "attention"], "add features or finetune"),
        (["--epochs", 1], "epochs must be 3 numbers"),
        (["model.nam=x"], "unknown key 'model.nam'"),
        (["--only", "blocks.7.attn"], "no attention has the name 'blocks.7.attn'"),
        (["--stages", "features", "finetune", "training.epoch=1"], "unknown key 'training.epoch'"),
        (["--sizes", 32, "training.epoch=1", "--epochs", 1, 1, 1], "unknown key 'training.epoch'"),
    ],
)
def test_bad_input(host_run, tmp_path, flags, message, capsys):
    assert convert(host_run, "--out", tmp_path / "out", *flags) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("kernel", "what"), [("softmax", "softmax twin"), (None, "a Castling model already")])
def test_networks_of_ours_are_refused_before_anything_is_written(tmp_path, kernel, what, capsys):
    small = {**HOST["model"], "name": "castling_deit_tiny_patch16_224", "kernel": kernel}
    few = {**HOST["training"], "max_steps": 1}
    train(parse_recipe({**HOST, "model": small, "training": few}), tmp_path / "run")
    assert convert(tmp_path / "run", "--out", tmp_path / "out") == 2
    assert what in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_bad_originals(tmp_path, host_run, capsys):
    (tmp_path / "x.pt").touch()
    (tmp_path / "empty").mkdir()
    for arguments, message in [
        (["vit_tiny_patch16_223"], "did you mean"),
        ([TINY_NAME], "needs its trained weights"),
        ([TINY_NAME, "--weights", tmp_path / "gone.pt"], "there is no file"),
        ([TINY_NAME, "--weights", tmp_path / "x.pt"], "comes without pictures: give --data DIR"),
        (["digits/softmax"], "with a recipe, give the original's --weights"),
        ([tmp_path / "empty"], "neither a run folder nor"),
        ([host_run, "--weights", tmp_path / "x.pt"], "a run has its own"),
    ]:
        assert convert(*arguments, "--out", tmp_path / "out") == 2
        assert message in capsys.readouterr().err
    with pytest.raises(ValueError, match="only a converted network has an original"):
        parse_recipe({**HOST, "imitate": "features"})
