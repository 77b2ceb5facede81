import json

import pytest
import torch
from torch import nn

from castling.export import ExportFailed, export, quantize, read_metadata
from castling.export import int8 as int8_module

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def exported(tiny, tmp_path_factory):
    """A network that tells bright pictures from dark ones, as a file, with such pictures."""
    import castling

    model = castling.castle(tiny("deit")).train()
    labels = torch.arange(32) % 2
    pictures = torch.randn(32, 3, 32, 32, generator=torch.Generator().manual_seed(0)) + 2.0 * labels.view(-1, 1, 1, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(15):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(pictures), labels).backward()
        optimizer.step()
    path = tmp_path_factory.mktemp("float") / "model.xml"
    export(model, path, pictures[:1])
    return path, pictures, labels


def share_of_right_answers(exported):
    _, pictures, labels = exported
    return lambda network: float((network(pictures).argmax(-1) == labels).float().mean())


def test_the_card(exported, tmp_path):
    path, pictures, _ = exported
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    card = quantize(path, tmp_path / "new" / "small.xml", pictures.split(4), share_of_right_answers(exported))
    assert card.accuracy_before == 1.0
    assert card.accuracy_after == 1.0
    assert card.drop == 0
    assert card.bytes_after < card.bytes_before
    assert min(card.milliseconds_before, card.milliseconds_after) > 0
    # Patches, qkv in two parts, K^T V, Q (K^T V), proj, fc1, fc2 of class token and patches, two convolutions, head.
    assert card.num_layers >= 10
    assert card.kept_in_float == ()
    assert json.loads(json.dumps(card.to_json()))["path"] == str(card.path)
    assert sorted(file.name for file in card.path.parent.iterdir()) == ["small.bin", "small.xml"]
    assert read_metadata(card.path) == read_metadata(path)
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before


def test_layers_go_back_to_float_until_accuracy_holds(exported, tmp_path):
    path, pictures, _ = exported
    wanted = int8_module.openvino_runner(int8_module.read_openvino(path))(pictures)

    def like_the_original(network):
        """Falls with the distance to the outputs in float, so that 8 bits everywhere cost too much."""
        return 1 - float((network(pictures) - wanted).abs().mean())

    everything = quantize(path, tmp_path / "all.xml", pictures.split(4), like_the_original, max_drop=100)
    card = quantize(path, tmp_path / "some.xml", pictures.split(4), like_the_original, max_drop=everything.drop / 2)
    assert everything.kept_in_float == ()
    assert 0 < len(card.kept_in_float) <= card.num_layers
    assert card.drop <= everything.drop / 2


def test_a_loss_that_nothing_mends_writes_nothing(exported, tmp_path, monkeypatch):
    path, pictures, _ = exported
    scores = iter([1.0])  # the first is that of the file in float
    monkeypatch.setattr(int8_module, "most_sensitive_first", lambda *_: [])
    with pytest.raises(ExportFailed, match=r"8 bits cost 10\.00 points everywhere, and more than the 0\.5 allowed"):
        quantize(path, tmp_path / "small.xml", [pictures], lambda network: next(scores, 0.9))
    assert not list(tmp_path.iterdir())


def test_bad_input(exported, tmp_path):
    path, pictures, _ = exported
    with pytest.raises(ValueError, match=r"reads one \.xml file and writes another"):
        quantize(path, path, [pictures], lambda network: 1.0)
    with pytest.raises(ValueError, match="max_drop must be at least 0; got -1"):
        quantize(path, tmp_path / "small.xml", [pictures], lambda network: 1.0, max_drop=-1)
    with pytest.raises(ValueError, match="calibration is empty"):
        quantize(path, tmp_path / "small.xml", [], lambda network: 1.0)
