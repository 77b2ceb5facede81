"""Every decoder, trained for a moment, is castled, certified, evaluated and exported to every format by the verbs."""

import json

import pytest
import torch
from mask_pictures import SMALL_MASK2FORMER, mask_recipe, write_masks

import castling
from castling.cli.main import main
from castling.exporting import read_metadata
from castling.training import parse_recipe, train
from castling.workflows.castle_run import castle_run

pytestmark = pytest.mark.slow
DECODERS = {
    "fpn": {"dim": 16, "fpn_dim": 16},
    "encoder_fpn": SMALL_MASK2FORMER,
    "deformable": SMALL_MASK2FORMER | {"pixel_decoder": "deformable"},
}
ENGINES = {".onnx": "onnxruntime", ".xml": "openvino", ".pt2": "torch"}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_masks(tmp_path_factory.mktemp("masks") / "shapes", size=(80, 64))


@pytest.fixture(scope="module", params=DECODERS)
def castled_folder(request, root, tmp_path_factory):
    if request.param != "fpn":
        pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp(request.param) / "run"
    train(parse_recipe({**mask_recipe(root), "segmenter": DECODERS[request.param]}), folder)
    castle_run(folder)
    return folder / "castled"


def test_it_is_castled_for_free_and_evaluated(castled_folder, capsys):
    certificate = json.loads((castled_folder / "certificate.json").read_text())
    assert certificate["verdict"] == "free"
    with_branch, without = (certificate["networks"][name] for name in ("with branch", "castled"))
    assert with_branch["agreement"] == 1
    assert with_branch["metrics"] == without["metrics"]
    capsys.readouterr()
    assert main(["evaluate", str(castled_folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["model"]
    assert found["miou"] == pytest.approx({m["name"]: m["value"] for m in without["metrics"]}["miou"])


@pytest.mark.parametrize("suffix", ENGINES)
def test_its_file_predicts_as_it_does(suffix, castled_folder, tmp_path):
    """Exporting verifies outputs at several sizes; this goes on to what people get of the file."""
    pytest.importorskip(ENGINES[suffix])
    path = tmp_path / f"model{suffix}"
    seen = castling.export(castled_folder, path)
    assert seen.dynamic == ("batch", "height", "width")
    assert seen.largest_difference < 1e-4
    assert read_metadata(path).outputs == ("scores",)
    pictures = list(torch.rand(2, 3, 50, 90, generator=torch.Generator().manual_seed(0)))
    pictures.append(torch.rand(3, 70, 64, generator=torch.Generator().manual_seed(1)))
    for ours, theirs in zip(
        castling.open(path).predict(pictures), castling.open(castled_folder).predict(pictures), strict=True
    ):
        assert ours.places.shape == theirs.places.shape
        assert (ours.places == theirs.places).mean() > 0.999  # scores differ in the last digits
