import json
from functools import partial

import pytest
import torch
from torch import nn

import castling
from castling.exporting import ExportFailed, export, open_export, read_metadata
from castling.exporting import int8 as int8_module
from castling.exporting.capture import capture, folded
from castling.exporting.openvino import read_openvino, to_openvino
from castling.measure import Timing
from castling.measure.metric import Metric
from castling.measure.trees import absolute_differences

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

quantize = partial(castling.exporting.quantize, allow_slower=True)  # networks this small gain no time


@pytest.fixture(scope="module")
def trained(tiny):
    """A network that tells bright pictures from dark ones, with such pictures and the answers."""
    model = castling.castle(tiny("deit")).train()
    labels = torch.arange(32) % 2
    pictures = torch.randn(32, 3, 32, 32, generator=torch.Generator().manual_seed(0)) + 2.0 * labels.view(-1, 1, 1, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(15):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(pictures), labels).backward()
        optimizer.step()
    return model, pictures, labels


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    """The network as a file."""
    model, pictures, _ = trained
    return export(model, tmp_path_factory.mktemp("float") / "model.xml", pictures[:1]).path


@pytest.fixture
def written(pair, tmp_path):
    """A network with several outputs, its file and pictures, which take a moment only."""
    pictures = torch.randn(8, 3, 32, 32)
    return pair, export(pair, tmp_path / "float" / "model.xml", pictures[:1]).path, pictures


def share_of_right_answers(trained):
    _, pictures, labels = trained
    return lambda network: Metric("top1", float((network(pictures).argmax(-1) == labels).float().mean()))


def distance_to(wanted, pictures):
    """Grows with the distance to the outputs in float, so that 8 bits cost something everywhere."""
    return lambda network: Metric(
        "distance", float(absolute_differences(network(pictures), wanted).mean()), "mm", higher_is_better=False
    )


@pytest.mark.slow
def test_the_card(trained, exported, tmp_path):
    model, pictures, _ = trained
    before = {file.name: file.read_bytes() for file in exported.parent.iterdir()}
    out = tmp_path / "new" / "small.xml"
    card = quantize(exported, out, model, pictures.split(4), share_of_right_answers(trained))
    assert card.metric_before == card.metric_after == Metric("top1", 1.0)
    assert (card.lost, card.max_loss) == (0, 0.5)
    assert 0 < card.largest_difference < 1
    assert card.bytes_after < card.bytes_before
    assert min(card.milliseconds_before, card.milliseconds_after) > 0
    # Patches, qkv in two parts, K^T V, Q (K^T V), proj, fc1, fc2 of class token and patches, two convolutions, head.
    assert card.num_layers >= 10
    assert card.kept_in_float == ()
    content = json.loads(json.dumps(card.to_json()))
    assert content["path"] == str(card.path)
    assert Metric(**content["metric_after"]) == Metric("top1", 1.0)
    assert sorted(file.name for file in card.path.parent.iterdir()) == ["small.bin", "small.xml"]
    assert read_metadata(card.path) == read_metadata(exported)
    assert {file.name: file.read_bytes() for file in exported.parent.iterdir()} == before
    assert model.training


@pytest.mark.slow
def test_layers_go_back_to_float_until_a_metric_that_should_be_low_is(trained, exported, tmp_path):
    model, pictures, _ = trained
    validate = distance_to(open_export(exported).run(pictures), pictures)
    everything = quantize(exported, tmp_path / "all.xml", model, pictures.split(4), validate, max_loss=100)
    limit = 0.75 * everything.lost
    card = quantize(exported, tmp_path / "some.xml", model, pictures.split(4), validate, max_loss=limit)
    assert everything.metric_before.value == 0
    assert everything.metric_after.value == everything.lost > 0
    assert everything.kept_in_float == ()
    assert 0 < len(card.kept_in_float) <= card.num_layers
    assert card.lost <= limit


def test_a_network_with_several_outputs_keeps_its_tree(written, tmp_path):
    pair, path, pictures = written
    wanted = open_export(path).run(pictures)
    validate = distance_to(wanted, pictures)
    everything = quantize(path, tmp_path / "all.xml", pair, pictures.split(4), validate, max_loss=100)
    card = quantize(path, tmp_path / "some.xml", pair, pictures.split(4), validate, max_loss=0.9 * everything.lost)
    assert card.lost <= 0.9 * everything.lost
    found = open_export(card.path).run(pictures)
    assert found["masks"] is None
    assert 0 < absolute_differences(found, wanted).mean() < 0.1


@pytest.mark.slow
def test_a_file_of_one_size_is_searched_for_maps_in_a_larger_twin_in_8_bits(trained, tmp_path, monkeypatch):
    model, pictures, _ = trained
    path = export(model, tmp_path / "float.xml", pictures[:1], dynamic=False).path
    sizes = []
    quantized = int8_module._quantized

    def noted(openvino_model, images, kept=()):
        sizes.append(tuple(images[0].shape[-2:]))
        return quantized(openvino_model, images, kept)

    monkeypatch.setattr(int8_module, "_quantized", noted)
    quantize(path, tmp_path / "small.xml", model, pictures[:4].split(1), lambda network: Metric("top1", 1.0))
    assert sizes == [(32, 32), (64, 64)]


def test_a_file_that_does_not_run_at_its_sizes_is_not_put_in_place(written, tmp_path, monkeypatch):
    pair, path, pictures = written

    def of_one_size(*_):
        fixed = read_openvino(path)
        fixed.reshape([8, 3, 32, 32])
        return fixed

    monkeypatch.setattr(int8_module, "_quantized", of_one_size)
    with pytest.raises(ExportFailed, match=r"does not run for an input of \(1, 3, 32, 32\)"):
        quantize(path, tmp_path / "new" / "small.xml", pair, [pictures], lambda network: Metric("top1", 1.0))
    assert not list((tmp_path / "new").iterdir())


@pytest.mark.slow
def test_a_file_with_a_softmax_that_the_network_lacks_is_not_put_in_place(
    trained, exported, tiny, tmp_path, monkeypatch
):
    model, pictures, _ = trained
    twin = to_openvino(capture(folded(tiny("deit", kernel="softmax")), pictures[:1]))
    twin.set_rt_info(read_metadata(exported).to_json(), "castling")
    monkeypatch.setattr(int8_module, "_quantized", lambda *_: twin)
    with pytest.raises(ExportFailed, match="has 1 softmax operators; the network in PyTorch has none"):
        quantize(exported, tmp_path / "small.xml", model, [pictures], lambda network: Metric("top1", 1.0))
    assert not list(tmp_path.iterdir())


def test_a_loss_that_nothing_mends_writes_nothing(written, tmp_path, monkeypatch):
    pair, path, pictures = written
    scores = iter([1.0])  # the first is that of the file in float
    monkeypatch.setattr(int8_module, "most_sensitive_first", lambda *_: [])
    pattern = r"8 bits cost 10 points of top1 everywhere, and more than the 0\.5 allowed"
    with pytest.raises(ExportFailed, match=pattern):
        quantize(path, tmp_path / "small.xml", pair, [pictures], lambda network: Metric("top1", next(scores, 0.9)))
    assert [entry.name for entry in tmp_path.iterdir()] == ["float"]


@pytest.mark.parametrize(
    ("has_instructions", "reason"),
    [(True, "layers this small gain nothing"), (False, "has no instructions for 8 bits"), (None, "may have none")],
)
def test_what_is_no_faster_is_refused(written, tmp_path, monkeypatch, has_instructions, reason):
    pair, path, pictures = written
    monkeypatch.setattr(int8_module, "has_8_bit_instructions", lambda: has_instructions)
    times = {"before": 0.002, "after": 0.0025}
    monkeypatch.setattr(
        int8_module, "time_interleaved", lambda passes: {name: Timing(times[name], 0, 1) for name in passes}
    )
    given = (path, tmp_path / "small.xml", pair, [pictures], lambda network: Metric("top1", 1.0))
    with pytest.raises(ExportFailed, match=f"2.50 ms where float32 takes 2.00; this processor .*{reason}"):
        quantize(*given, allow_slower=False)
    assert [entry.name for entry in tmp_path.iterdir()] == ["float"]
    times["after"] = 0.001
    assert quantize(*given, allow_slower=False).milliseconds_after == pytest.approx(1.0)


def test_bad_input(pair, tmp_path):
    exported, pictures = tmp_path / "model.xml", torch.zeros(1, 3, 8, 8)

    def validate(network):
        raise AssertionError("nothing is measured before all is checked")

    with pytest.raises(ValueError, match=r"reads one \.xml file and writes another"):
        quantize(exported, exported, pair, [pictures], validate)
    with pytest.raises(ValueError, match="max_loss must be at least 0; got -1"):
        quantize(exported, tmp_path / "small.xml", pair, [pictures], validate, max_loss=-1)
    with pytest.raises(ValueError, match="calibration is empty"):
        quantize(exported, tmp_path / "small.xml", pair, [], validate)
