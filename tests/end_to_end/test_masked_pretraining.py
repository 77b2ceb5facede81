"""A ViT is pretrained without labels by its commands, castled, exported and reported, and begins a classifier."""

import json

import pytest
import torch
from mask_pictures import mask_recipe, write_masks
from masked_pictures import masked_recipe, write_pictures
from PIL import Image
from safetensors.torch import load_file

from castling.cli.main import main
from castling.settings import with_overrides
from castling.training import RunFolder, load_recipe, parse_recipe, train
from castling.training.recipe import recipe_text
from castling.training.saved import open_model
from castling.workflows.castle_run import castle_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_pictures(tmp_path_factory.mktemp("pictures") / "waves")


@pytest.fixture(scope="module")
def castled_folder(root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("autoencoder") / "run"
    (folder.parent / "recipe.yaml").write_text(recipe_text(parse_recipe(masked_recipe(root))))
    assert main(["train", str(folder.parent / "recipe.yaml"), "--out", str(folder)]) == 0
    assert main(["castle", str(folder)]) == 0
    return folder / "castled"


def test_the_certificate_is_in_errors_of_which_less_is_better(castled_folder):
    certificate = json.loads((castled_folder / "certificate.json").read_text())
    deciding = certificate["networks"]["castled"]["metrics"][0]
    assert (deciding["name"], deciding["higher_is_better"]) == ("error", False)
    assert certificate["verdict"] == "free"
    assert certificate["quadratic_tensors"] == []
    assert certificate["networks"]["with branch"]["agreement"] == 1
    assert {layer["num_tokens"] for layer in certificate["layers"]} == {5}


def test_it_is_certified_at_other_sizes_too(castled_folder):
    certificate, _ = castle_run(castled_folder.parent, sizes=[64])
    assert certificate.sizes[64]["castled"][0].name == "error"


def test_it_is_evaluated(castled_folder, capsys):
    capsys.readouterr()
    found = []
    for _ in range(2):
        assert main(["evaluate", str(castled_folder), "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out)["model"])
    assert found[0] == found[1]
    assert 0 < found[0]["error"] < 3


def test_it_draws_what_is_hidden(castled_folder, root, tmp_path, capsys):
    command = ["predict", str(root / "val"), "--model", str(castled_folder), "--set", "masked=0.5"]
    capsys.readouterr()
    assert main([*command, "--json", "--draw", str(tmp_path / "drawn")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["num_hidden"] for one in found] == [8] * 6
    assert len(list((tmp_path / "drawn").iterdir())) == 6
    assert Image.open(next((tmp_path / "drawn").iterdir())).width > 3 * 32
    assert main(command) == 0
    assert "8 of 16 patches hidden" in capsys.readouterr().out


@pytest.mark.parametrize("format_name", ["onnx", "openvino", "torch_export"])
def test_its_features_are_exported(castled_folder, tmp_path, format_name):
    from castling.exporting import open_export, read_metadata

    out = tmp_path / {"onnx": "model.onnx", "openvino": "model.xml", "torch_export": "model.pt2"}[format_name]
    pytest.importorskip({"onnx": "onnxruntime", "openvino": "openvino", "torch_export": "torch"}[format_name])
    assert main(["export", str(castled_folder), "--format", format_name, "--out", str(out)]) == 0
    images = torch.rand(2, 3, 64, 32)
    wanted = open_model(castled_folder).network(images)["features"].detach()
    torch.testing.assert_close(open_export(out).run(images)["features"], wanted, atol=1e-4, rtol=1e-4)
    assert read_metadata(out).outputs == ("features",)


def test_eight_bits_are_refused_by_name(castled_folder, tmp_path, capsys):
    pytest.importorskip("nncf")
    out = tmp_path / "model.xml"
    assert main(["export", str(castled_folder), "--format", "openvino", "--int8", "--out", str(out)]) == 2
    assert "there is no error to measure it by" in capsys.readouterr().err


def test_it_is_reported(castled_folder):
    assert main(["report", str(castled_folder.parent), "--sizes", "32", "64"]) == 0
    page = (castled_folder.parent / "report.html").read_text()
    assert "Hidden parts drawn" in page
    assert Image.open(castled_folder.parent / "figures" / "drawn.png").width > 2 * 3 * 96


def test_its_weights_begin_a_classifier(castled_folder, tmp_path):
    options = masked_recipe("unused")["model"]["options"]
    values = [f"model.options.{name}={value}" for name, value in (options | {"mlp_ratio": 4.0}).items()]
    values += ["data.channels=3", "data.mean=[0.3, 0.3, 0.3]", "data.std=[0.4, 0.4, 0.4]", "training.max_steps=1"]
    for weights in (castled_folder / "model.safetensors", *castled_folder.parent.glob("checkpoints/*/ema.safetensors")):
        recipe = load_recipe("digits/castling", [*values, f"model.weights={weights}"])
        network = recipe.make_task().build_network(training=True)
        pretrained = load_file(weights)
        shared = [name for name in network.state_dict() if not name.startswith("head.")]
        assert sorted(f"backbone.{name}" for name in shared) == sorted(n for n in pretrained if n[:9] == "backbone.")
        for name in shared:
            assert torch.equal(network.state_dict()[name], pretrained[f"backbone.{name}"]), name
    folder = tmp_path / "classifier"
    command = ["train", "digits/castling", *values, f"model.weights={castled_folder / 'model.safetensors'}"]
    assert main([*command, "--out", str(folder)]) == 0
    assert RunFolder(folder).summary()["steps"] == 1


def test_its_weights_begin_a_segmenter(tmp_path):
    """Those of a checkpoint and of the castled network, at the same size or resampled to another."""
    options = {"img_size": 64, "embed_dim": 16, "depth": 1, "num_heads": 2}
    masked = masked_recipe(write_pictures(tmp_path / "waves", side=64), max_steps=1)
    masked["model"]["options"], masked["data"]["image_size"] = options, 64
    train(parse_recipe(masked), tmp_path / "pretrained")
    castle_run(tmp_path / "pretrained")
    recipe = mask_recipe(write_masks(tmp_path / "shapes", num_train=8, num_val=2), max_steps=1)
    assert recipe["model"]["options"] == options
    checkpoints = [*(tmp_path / "pretrained" / "checkpoints").glob("*/ema.safetensors")]
    for weights in (checkpoints[-1], tmp_path / "pretrained" / "castled" / "model.safetensors"):
        pretrained = load_file(weights)
        for size in (64, 96):
            overrides = [f"model.weights={weights}", f"model.input_size={size}", f"data.image_size={size}"]
            task = parse_recipe(with_overrides(recipe, overrides)).make_task()
            vit = task.build_network(training=True).backbone.vit.state_dict()
            assert sorted(f"backbone.{name}" for name in vit) == sorted(n for n in pretrained if n[:9] == "backbone.")
            for name, value in vit.items():
                wanted = pretrained[f"backbone.{name}"]
                if name == "pos_embed" and size != 64:
                    assert value.shape[1] > wanted.shape[1]
                else:
                    assert torch.equal(value, wanted), name
    train(parse_recipe(with_overrides(recipe, [f"model.weights={weights}"])), tmp_path / "segmenter")
    assert RunFolder(tmp_path / "segmenter").summary()["steps"] == 1
