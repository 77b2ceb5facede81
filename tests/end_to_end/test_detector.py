"""A detector goes all the way by its commands, and learns by heart what it is shown."""

import json

import pytest
import torch
from box_pictures import box_recipe, write_boxes
from PIL import Image

from castling.cli.main import main
from castling.report import run_figures
from castling.report.plotting import new_figure
from castling.report.run_data import read_run
from castling.tasks.detection.decoding import select
from castling.training import RunFolder, parse_recipe, train
from castling.training.recipe import recipe_text
from castling.training.saved import open_model

pytestmark = pytest.mark.slow
pytest.importorskip("faster_coco_eval")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_boxes(tmp_path_factory.mktemp("boxes") / "coco")


@pytest.fixture(scope="module")
def castled_folder(root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("detector") / "run"
    (folder.parent / "recipe.yaml").write_text(recipe_text(parse_recipe(box_recipe(root))))
    assert main(["train", str(folder.parent / "recipe.yaml"), "--out", str(folder)]) == 0
    assert main(["castle", str(folder), "--tolerance", "1"]) == 0
    return folder / "castled"


def test_the_certificate_is_in_average_precision(castled_folder):
    certificate = json.loads((castled_folder / "certificate.json").read_text())
    assert certificate["networks"]["castled"]["metrics"][0]["name"] == "ap"
    assert certificate["verdict"] == "free"
    assert certificate["quadratic_tensors"] == []
    assert certificate["networks"]["with branch"]["agreement"] == 1
    assert len(certificate["layers"]) == 2


def test_it_is_evaluated(castled_folder, capsys):
    capsys.readouterr()
    assert main(["evaluate", str(castled_folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["model"]) >= {"ap", "ap50", "ap75", "ap_of_square", "ap_of_disc"}
    assert main(["evaluate", str(castled_folder)]) == 0
    shown = capsys.readouterr().out
    assert "ap50" in shown
    assert "ap_of_disc" not in shown  # classes may be many


def test_it_looks_at_pictures(castled_folder, root, tmp_path, capsys):
    command = ["predict", str(root / "val2017"), "--model", str(castled_folder), "--set", "score=0.0", "at_most=2"]
    capsys.readouterr()
    assert main([*command, "--json", "--draw", str(tmp_path / "drawn")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [len(picture["objects"]) for picture in found] == [2] * 8
    assert len(list((tmp_path / "drawn").iterdir())) == 8
    assert main([*command, "form=coco", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert len(results) == 16
    assert {result["image_id"] for result in results} == set(range(1, 9))
    assert {result["category_id"] for result in results} <= {3, 7}


def test_it_is_exported_with_both_outputs(castled_folder, tmp_path):
    from castling.exporting import open_export, read_metadata

    out = tmp_path / "model.onnx"
    assert main(["export", str(castled_folder), "--out", str(out)]) == 0
    images = torch.rand(2, 3, 96, 64)
    wanted, found = open_model(castled_folder).network(images), open_export(out).run(images)
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value.detach(), atol=1e-2, rtol=1e-3)
    assert read_metadata(out).facts == {"labels": ["square", "disc"]}


def test_a_finished_file_has_the_boxes_that_are_left(castled_folder, tmp_path, capsys):
    from castling.exporting import open_export, read_metadata

    out = tmp_path / "model.pt2"
    command = ["export", str(castled_folder), "--format", "torch_export", "--static", "--finished", "--out", str(out)]
    assert main(command) == 0
    assert read_metadata(out).outputs == ("scores", "labels", "boxes", "num")
    images = torch.rand(1, 3, 64, 64)
    saved = open_model(castled_folder)
    wanted = select(*(value[0].detach() for value in saved.network(images).values()), saved.task.config.select)
    found = open_export(out).run(images)
    number = int(found["num"])
    assert number == len(wanted.scores) > 0
    torch.testing.assert_close(found["scores"][0, :number], wanted.scores, atol=1e-4, rtol=0)
    assert main([*command, "--int8"]) == 2
    assert "leave --finished out" in capsys.readouterr().err


def test_it_is_reported(castled_folder):
    assert main(["report", str(castled_folder.parent), "--sizes", "64", "96"]) == 0
    page = (castled_folder.parent / "report.html").read_text()
    assert "ap50" in page
    for title in ("Precision over recall", "Examples", "Most mistakes"):
        assert title in page
    assert Image.open(castled_folder.parent / "figures" / "worst.png").width > 2 * 2 * 64
    assert main(["report", str(castled_folder.parent), "--no-speed", "--no-examples"]) == 0
    assert "Most mistakes" not in (castled_folder.parent / "report.html").read_text()


def test_its_report_draws_average_precision_with_branch_and_castled(castled_folder, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(run_figures, "new_figure", lambda *size: drawn.append(new_figure(*size)) or drawn[-1])
    run_figures.draw_metric([read_run(castled_folder.parent)], tmp_path / "metric.png")
    (axes,) = drawn[0].axes
    evals = RunFolder(castled_folder.parent).evals()
    wanted = {
        "with the branch": [[record.epoch, 100 * record.model[0].value] for record in evals],
        "castled": [[record.epoch, 100 * record.castled[0].value] for record in evals],
    }
    assert evals[-1].model[0].name == "ap"
    assert axes.get_ylabel() == "ap, %"
    assert {line.get_label(): line.get_xydata().tolist() for line in axes.lines} == wanted


def test_twenty_pictures_are_learned_by_heart(tmp_path):
    root = write_boxes(tmp_path / "coco", num_train=20, num_val=1)
    (root / "annotations" / "instances_val2017.json").write_bytes(
        (root / "annotations" / "instances_train2017.json").read_bytes()
    )
    recipe = box_recipe(
        root,
        epochs=100,
        batch_size=10,
        learning_rate={"peak": 4e-3, "warmup_epochs": 5},
        evaluate_every=100,
        ema_decay=None,
        log_every=20,
    )
    recipe["augment"] = {"crop": 0.0, "flip": 0.0, "color": 0.0}
    recipe["data"]["val_pictures"] = "train2017"
    train(parse_recipe(recipe), tmp_path / "run")
    (last,) = RunFolder(tmp_path / "run").evals()
    values = {metric.name: metric.value for metric in last.castled}
    assert values["ap50"] > 0.9
