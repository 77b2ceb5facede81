"""The main job by its commands, from a recipe to a page: in one process, as every command alone is tested elsewhere."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

import castling
from castling.cli.main import main
from castling.training.saved import open_model

SMALL = ("model.options.depth=1", "model.options.embed_dim=16", "model.options.num_heads=2", "training.epochs=2")


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "digits"
    assert main(["train", "digits/castling", *SMALL, "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def castled_folder(run_folder):
    assert main(["castle", str(run_folder)]) == 0
    return run_folder / "castled"


def test_castle_writes_a_certificate_and_weights(run_folder, castled_folder):
    certificate = json.loads((run_folder / "certificate.json").read_text())
    assert certificate["verdict"] == "free"
    assert certificate["quadratic_tensors"] == []
    assert certificate["layers"][0]["history"][0][0] == 0
    assert castling.is_castled(open_model(castled_folder).model)
    assert not castling.is_castled(open_model(run_folder).model)


def test_a_gap_above_the_tolerance_writes_no_weights(run_folder, tmp_path, capsys, monkeypatch):
    import shutil

    from castling.cli import castle

    folder = tmp_path / "run"
    shutil.copytree(run_folder, folder, ignore=shutil.ignore_patterns("castled", "certificate.json"))
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text.replace("end: 1.0", "end: 0.0").replace("start: 0.02", "start: 0.0"))
    monkeypatch.setattr(castle, "certify", lambda model, batches, tolerance, history: harmful(model, batches, history))
    assert main(["castle", str(folder)]) == 1
    assert "not yet" in capsys.readouterr().out
    assert json.loads((folder / "certificate.json").read_text())["verdict"] == "not yet"
    assert not (folder / "castled").exists()


def harmful(model, batches, history):
    """The certificate where labels are what the model says with its open mask, and castling must say otherwise."""
    batches = list(batches)
    images = torch.cat([batch["image"] for batch in batches])
    with torch.no_grad():
        open_mask = model(images)
        with castling.castled(model):
            margins = [logits[:, 0] - logits[:, 1] for logits in (open_mask, model(images))]
        place = (margins[0] - margins[1]).abs().argmax()
        model.head.bias[:2] += 100.0  # only these two classes are said,
        model.head.bias[0] -= (margins[0][place] + margins[1][place]) / 2  # and one picture lies between the two forms
        relabelled = [{**batch, "target": model(batch["image"]).argmax(-1)} for batch in batches]
    return castling.certify(model, relabelled, 0.0, history)


def test_evaluate_agrees_with_the_summary(run_folder, castled_folder, capsys):
    capsys.readouterr()
    summary = json.loads((run_folder / "summary.json").read_text())
    assert main(["evaluate", str(run_folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["model"] == pytest.approx(summary["model"])
    assert main(["evaluate", str(castled_folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["model"] == pytest.approx(summary["castled"])
    assert found["castled"] is None


def test_logits_for_a_student(run_folder, tmp_path):
    assert main(["evaluate", str(run_folder), "--logits", str(tmp_path / "logits")]) == 0
    follow = f"distillation={{kind: soft, logits: {tmp_path / 'logits'}}}"
    arguments = ["train", "digits/castling", *SMALL, "training.max_steps=2", follow, "--out", str(tmp_path / "student")]
    assert main(arguments) == 0


def test_predict(castled_folder, tmp_path, capsys):
    capsys.readouterr()
    for number in range(3):
        scan = (load_digits().images[number] * 15.9).astype(np.uint8)
        Image.fromarray(scan).save(tmp_path / f"{number}.png")
    (tmp_path / "broken.png").write_bytes(b"no picture")
    assert main(["predict", str(tmp_path / "0.png"), "--model", str(castled_folder), "--json", "--top", "2"]) == 0
    [found] = json.loads(capsys.readouterr().out)
    assert len(found["labels"]) == len(found["probabilities"]) == 2
    assert main(["predict", str(tmp_path), "--model", str(castled_folder)]) == 1  # one of four is unreadable
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 4
    assert sum("unreadable" in line for line in shown) == 1


def test_report_measures_and_writes_a_page(run_folder, castled_folder):
    assert main(["report", str(run_folder), "--sizes", "32", "64"]) == 0
    page = (run_folder / "report.html").read_text()
    assert "free" in page
    assert "finished · 44 steps, 2 epochs" in page
    assert len(json.loads((run_folder / "speed.json").read_text())["rows"]) == 2


def test_a_run_goes_on_by_its_folder(run_folder, capsys):
    assert main(["train", str(run_folder)]) == 0
    assert main(["train", str(run_folder), "seed=1"]) == 2
    assert "a run goes on as it began" in capsys.readouterr().err


def test_settings_may_stand_behind_flags(tmp_path, capsys):
    folder = str(tmp_path / "run")
    assert main(["train", "digits/castling", SMALL[0], "--out", folder, *SMALL[1:], "training.max_steps=1"]) == 0
    assert open_model(folder).recipe.settings.model.options["embed_dim"] == 16
    with pytest.raises(SystemExit):
        main(["train", "digits/castling", "--out", folder, "--epochs=1"])
    assert "unrecognized arguments: --epochs=1" in capsys.readouterr().err


def test_recipes_list_show_copy(tmp_path, capsys):
    assert main(["recipes"]) == 0
    assert "imagenet/castling_levit_128" in capsys.readouterr().out
    assert main(["recipes", "digits/castling"]) == 0
    assert "task: classification" in capsys.readouterr().out
    for code in (0, 2):  # the second time it is there
        assert main(["recipes", "digits/castling", "--copy", str(tmp_path / "mine.yaml")]) == code
    assert (tmp_path / "mine.yaml").read_text().startswith("# ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "digits/castling", "training.epochz=1"], "unknown key 'training.epochz': did you mean 'epochs'"),
        (["train", "digits/castlin"], "did you mean 'digits/castling'"),
        (["castle", "nowhere"], "nowhere is no run folder"),
        (["evaluate", "nowhere"], "nowhere is no run folder"),
        (["predict", "x.png", "--model", "nowhere"], "nowhere is no run folder"),
        (["report", "nowhere"], "nowhere is not a run folder"),
    ],
)
def test_bad_input_is_one_line(arguments, message, capsys):
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_the_demo(tmp_path, capsys):
    assert main(["demo", "--out", str(tmp_path / "demo"), "--epochs", "1"]) in (0, 1)
    assert "report.html" in capsys.readouterr().out
    page = (tmp_path / "demo" / "report.html").read_text()
    assert "softmax" in page
    assert (tmp_path / "demo" / "castling" / "certificate.json").is_file()
