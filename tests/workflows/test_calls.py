"""The calls of the package itself, as a person in a notebook makes them."""

import inspect
import json
import sys

import numpy as np
import pytest
import timm
import torch
from PIL import Image

import castling
from castling.cli.main import main
from castling.exporting import read_metadata

pytestmark = pytest.mark.slow

SMALL = [
    "model.options={img_size: 32, patch_size: 8, embed_dim: 16, depth: 1, num_heads: 2}",
    "training={max_steps: 3, batch_size: 32, workers: 0}",
]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "digits"
    castling.train("digits/castling", folder, SMALL)
    castling.castle_run(folder, tolerance=100)
    return folder


@pytest.fixture(scope="module")
def pictures():
    return list(np.random.default_rng(0).integers(0, 256, (5, 40, 30), np.uint8))


def test_everything_public_is_explained():
    assert all(inspect.getdoc(getattr(castling, name)) for name in castling.__all__)
    for name in ("train", "open", "export", "castle_run", "convert", "castle", "certify"):
        assert name in castling.__all__
        assert name in castling.__doc__


def test_training_gives_a_predictor_and_goes_on(run_folder, pictures):
    model = castling.train(run_folder)  # is done already
    assert [found.labels for found in model.predict(pictures)] == [
        found.labels for found in castling.open(run_folder).predict(pictures)
    ]
    with pytest.raises(ValueError, match="a run goes on as it began"):
        castling.train(run_folder, overrides=["seed=1"])
    with pytest.raises(ValueError, match="a new run needs a folder"):
        castling.train("digits/castling")


@pytest.mark.parametrize("suffix", [".onnx", ".xml", ".pt2"])
@pytest.mark.parametrize("dynamic", [True, False], ids=["free", "fixed"])
def test_a_file_predicts_what_its_run_does(run_folder, pictures, tmp_path, suffix, dynamic):
    path = tmp_path / f"digits{suffix}"
    castling.export(run_folder, path, dynamic=dynamic)
    expected = castling.open(run_folder / "castled").predict(pictures, top=3)
    found = castling.open(path).predict(pictures, top=3)
    assert len(found) == 5
    for one, other in zip(found, expected, strict=True):
        assert one.labels == other.labels
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-4)
    data = castling.open(path).recipe.settings.data
    assert (data.root, data.mean) == (None, (0.305,))


def test_a_file_of_another_size_prepares_pictures_for_it(run_folder, pictures, tmp_path):
    castling.export(run_folder, tmp_path / "large.pt2", size=(48, 48), dynamic=False)
    opened = castling.open(tmp_path / "large.pt2")
    assert opened.task.config.data.image_size == 48
    assert len(opened.predict(pictures[0])[0].labels) == 5
    with pytest.raises(ValueError, match=r"takes images \(1, 1, 48, 48\); got \(1, 1, 32, 32\)"):
        opened.network(torch.zeros(1, 1, 32, 32))


def test_a_network_of_ones_own_is_exported(tmp_path):
    model = castling.castle(timm.create_model("castling_deit_tiny_patch16_224", img_size=32, depth=1, embed_dim=12))
    assert castling.export(model, tmp_path / "model.pt2", torch.zeros(1, 3, 32, 32)).num_softmax == 0
    with pytest.raises(ValueError, match="a network needs an example"):
        castling.export(model, tmp_path / "model.pt2")
    with pytest.raises(ValueError, match="gives output and no predictions"):
        castling.open(tmp_path / "model.pt2")


def test_the_command_takes_a_file(run_folder, pictures, tmp_path, capsys):
    castling.export(run_folder, tmp_path / "digits.onnx")
    Image.fromarray(pictures[0]).save(tmp_path / "a.png")
    capsys.readouterr()
    assert main(["predict", str(tmp_path / "a.png"), "--model", str(tmp_path / "digits.onnx")]) == 0
    assert "a.png: " in capsys.readouterr().out


def test_a_file_does_not_say_where_its_data_was(run_folder, tmp_path):
    castling.export(run_folder, tmp_path / "digits.onnx")
    assert str(tmp_path.parent) not in read_metadata(tmp_path / "digits.onnx").to_json()


@pytest.mark.parametrize("missing", ["nowhere", "nowhere.onnx"])
def test_nothing_there_is_said(tmp_path, missing):
    with pytest.raises(ValueError, match="nowhere"):
        castling.open(tmp_path / missing)


def test_a_file_imports_nothing(run_folder, tmp_path):
    path = tmp_path / "digits.onnx"
    castling.export(run_folder, path)
    import onnx

    graph = onnx.load(path)
    (entry,) = [entry for entry in graph.metadata_props if entry.key == "castling"]
    genuine = entry.value
    entry.value = genuine.replace('"task": "classification"', '"task": "antigravity:Harm"')
    assert entry.value != genuine
    onnx.save(graph, path)
    with pytest.raises(ValueError, match=r"needs the task 'antigravity:Harm': import antigravity first"):
        castling.open(path)
    assert "antigravity" not in sys.modules
    content = json.loads(genuine)
    del content["run"]["facts"]
    entry.value = json.dumps(content)
    onnx.save(graph, path)
    with pytest.raises(ValueError, match=r"are damaged: run\.facts must be an object"):
        castling.open(path)
