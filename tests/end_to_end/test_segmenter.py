"""A segmenter goes all the way by its commands, and learns by heart what it is shown."""

import json

import pytest
import torch
from mask_pictures import CLASSES, mask_recipe, write_masks
from PIL import Image

from castling.cli.main import main
from castling.training import RunFolder, parse_recipe, train
from castling.training.recipe import recipe_text
from castling.training.saved import open_model

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_masks(tmp_path_factory.mktemp("masks") / "shapes", size=(80, 64))


@pytest.fixture(scope="module")
def castled_folder(root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("segmenter") / "run"
    (folder.parent / "recipe.yaml").write_text(recipe_text(parse_recipe(mask_recipe(root))))
    assert main(["train", str(folder.parent / "recipe.yaml"), "--out", str(folder)]) == 0
    assert main(["castle", str(folder)]) == 0
    return folder / "castled"


def test_the_certificate_is_in_mean_iou(castled_folder):
    certificate = json.loads((castled_folder / "certificate.json").read_text())
    assert certificate["networks"]["castled"]["metrics"][0]["name"] == "miou"
    assert certificate["verdict"] == "free"
    assert certificate["quadratic_tensors"] == []
    assert certificate["networks"]["with branch"]["agreement"] == 1


def test_it_is_evaluated(castled_folder, capsys):
    capsys.readouterr()
    assert main(["evaluate", str(castled_folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["model"]) >= {"miou", "macc", "pacc", "iou_of_ground"}


def test_it_looks_at_pictures(castled_folder, root, tmp_path, capsys):
    command = ["predict", str(root / "images" / "val"), "--model", str(castled_folder)]
    capsys.readouterr()
    assert main([*command, "--json", "--draw", str(tmp_path / "drawn")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found) == len(list((tmp_path / "drawn").iterdir())) == 8
    assert all(sum(picture["shares"].values()) == pytest.approx(1) for picture in found)
    assert main([*command, "--set", "form=mask", "--draw", str(tmp_path / "masks")]) == 0
    mask = Image.open(next((tmp_path / "masks").iterdir()))
    assert (mask.mode, mask.size) == ("P", (80, 64))
    assert max(mask.tobytes()) < len(CLASSES)


def test_it_is_exported_for_any_size(castled_folder, tmp_path):
    from castling.exporting import open_export, read_metadata

    pytest.importorskip("onnxruntime")
    out = tmp_path / "model.onnx"
    assert main(["export", str(castled_folder), "--out", str(out)]) == 0
    images = torch.rand(2, 3, 96, 64)
    wanted, found = open_model(castled_folder).network(images), open_export(out).run(images)
    torch.testing.assert_close(found, wanted.detach(), atol=1e-4, rtol=0)
    assert read_metadata(out).outputs == ("scores",)
    assert read_metadata(out).facts["labels"] == list(CLASSES)


def test_it_is_reported(castled_folder):
    assert main(["report", str(castled_folder.parent), "--sizes", "64", "96"]) == 0
    page = (castled_folder.parent / "report.html").read_text()
    for title in ("miou", "Classes", "Confusion matrix", "Examples", "Worst pictures"):
        assert title in page


def test_its_data_is_checked_by_the_command(root, capsys):
    assert main(["data", "check", str(root)]) == 0
    assert "square" in capsys.readouterr().out


def test_eight_pictures_are_learned_by_heart(tmp_path):
    root = write_masks(tmp_path / "shapes", num_train=8, num_val=1)
    recipe = mask_recipe(root, epochs=60, learning_rate={"peak": 4e-3}, evaluate_every=60, ema_decay=None, log_every=20)
    recipe["augment"] = {"scale": [1.0, 1.0], "flip": 0.0, "color": 0.0, "cat_max": 1.0}
    recipe["data"] |= {"val_pictures": "images/train", "val_masks": "annotations/train"}
    train(parse_recipe(recipe), tmp_path / "run")
    (last,) = RunFolder(tmp_path / "run").evals()
    assert {metric.name: metric.value for metric in last.castled}["miou"] > 0.8
