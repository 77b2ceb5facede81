"""The main job by its commands, from a recipe to a page: in one process, as every command alone is tested elsewhere."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

import castling
from castling.cli import demo
from castling.cli.main import main
from castling.measure.metric import Metric
from castling.training.saved import open_model

SMALL = ("model.options.depth=1", "model.options.embed_dim=16", "model.options.num_heads=2", "training.epochs=2")


@pytest.fixture(scope="module")
def run_folder(digits_run, tmp_path_factory):
    """A trained run with castled weights, of this file's own: some tests write into it."""
    folder = tmp_path_factory.mktemp("runs") / "digits"
    shutil.copytree(digits_run, folder)
    return folder


@pytest.fixture(scope="module")
def castled_folder(run_folder):
    return run_folder / "castled"


def test_castle_writes_a_certificate_and_weights(run_folder, castled_folder):
    certificate = json.loads((run_folder / "certificate.json").read_text())
    assert certificate["verdict"] == "free"
    assert certificate["quadratic_tensors"] == []
    step, heads = certificate["layers"][0]["history"][0]
    assert step == 0
    assert len(heads) == 2
    assert castling.is_castled(open_model(castled_folder).network)
    assert not castling.is_castled(open_model(run_folder).network)


@pytest.mark.slow
def test_a_gap_above_the_tolerance_writes_no_weights(tmp_path, capsys):
    """A network that was trained with an open mask to the end still needs it."""
    folder, always_open = tmp_path / "run", ("training.threshold=null", "model.attention={threshold: 0.0}")
    assert main(["train", "digits/castling", *SMALL, *always_open, "training.epochs=6", "--out", str(folder)]) == 0
    assert main(["castle", str(folder), "--tolerance", "0"]) == 1
    assert "not yet" in capsys.readouterr().out
    certificate = json.loads((folder / "certificate.json").read_text())
    assert certificate["verdict"] == "not yet"
    assert certificate["lost"] > 0
    assert not (folder / "castled").exists()


def test_a_checkpoint_of_castled_weights_is_refused(run_folder, castled_folder, capsys):
    for command in (["evaluate", str(castled_folder)], ["predict", "x.png", "--model", str(castled_folder)]):
        assert main([*command, "--checkpoint", "best"]) == 2
        assert f"castling castle {run_folder} --checkpoint best" in capsys.readouterr().err
    assert main(["export", str(run_folder), "--checkpoint", "best"]) == 2
    assert "no checkpoints; got checkpoint 'best'" in capsys.readouterr().err


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


@pytest.mark.slow
def test_logits_for_a_student(run_folder, tmp_path):
    assert main(["evaluate", str(run_folder), "--answers", str(tmp_path / "logits")]) == 0
    follow = f"distillation={{kind: soft, logits: {tmp_path / 'logits'}}}"
    arguments = ["train", "digits/castling", *SMALL, "training.max_steps=2", follow, "--out", str(tmp_path / "student")]
    assert main(arguments) == 0


def test_predict(castled_folder, tmp_path, capsys):
    capsys.readouterr()
    for number in range(3):
        scan = (load_digits().images[number] * 15.9).astype(np.uint8)
        Image.fromarray(scan).save(tmp_path / f"{number}.png")
    (tmp_path / "broken.png").write_bytes(b"no picture")
    assert main(["predict", str(tmp_path / "0.png"), "--model", str(castled_folder), "--json", "--set", "top=2"]) == 0
    [found] = json.loads(capsys.readouterr().out)
    assert len(found["labels"]) == len(found["probabilities"]) == 2
    assert main(["predict", str(tmp_path), "--model", str(castled_folder)]) == 1  # one of four is unreadable
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 4
    assert sum("unreadable" in line for line in shown) == 1
    assert main(["predict", str(tmp_path), "--model", str(castled_folder), "--draw", str(tmp_path / "drawn")]) == 1
    drawn = sorted((tmp_path / "drawn").iterdir())
    assert [path.name for path in drawn] == ["0000-0.png", "0001-1.png", "0002-2.png"]
    with Image.open(drawn[0]) as picture:
        assert picture.height > 8  # the classes stand below


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
        (["report", "nowhere"], "nowhere is no run folder"),
    ],
)
def test_bad_input_is_one_line(arguments, message, capsys):
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_the_demo_says_which_promises_it_broke(tmp_path, capsys):
    assert main(["demo", "--out", str(tmp_path / "demo"), "--epochs", "1"]) == 1
    shown = capsys.readouterr().out
    assert "report.html" in shown
    assert "promised 97% castled, and reached" in shown
    page = (tmp_path / "demo" / "report.html").read_text()
    assert "softmax" in page
    assert (tmp_path / "demo" / "castling" / "certificate.json").is_file()


@pytest.mark.parametrize(
    ("castled", "twin", "allowed", "broken"),
    [(0.98, 0.984, True, 0), (0.96, 0.96, True, 1), (0.98, 0.99, True, 1), (0.98, 0.98, False, 1), (0.9, 1, False, 3)],
)
def test_promises_of_the_demo(castled, twin, allowed, broken):
    class Certificate:
        lost = 1.0

    certificate = Certificate()
    certificate.allowed = allowed
    found = demo.broken_promises(Metric("top1", castled), Metric("top1", twin), certificate)
    assert len(found) == broken
