"""The cost of really trained networks, small ones."""

import json

import pytest
from run_folders import make_run, train_run

from castling.report.run_data import read_run
from castling.report.run_speed import default_sizes, measure_run


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    return {attention: train_run(runs / attention, attention) for attention in ("castling", "converted")}


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["castling", "converted"])
def test_the_castled_network_is_measured_beside_softmax_and_kept(folders, attention):
    done = []
    content = measure_run(folders[attention], [64, 32, 32], done.append)
    assert read_run(folders[attention]).speed == json.loads(json.dumps(content))
    small, large = content["rows"]
    assert (small["size"], large["size"], done) == (32, 64, [64, 32])
    assert "processor" in content["environment"]
    for row in content["rows"]:
        assert list(row["macs"]) == ["castled", "softmax"]
        assert min(row["milliseconds"].values()) > 0
    assert small["macs"] != large["macs"]
    # Four times the tokens: linear attention costs four times as much, softmax more.
    grown = {name: large["macs"][name] / small["macs"][name] for name in small["macs"]}
    assert grown["castled"] < 4.01 < grown["softmax"]


def test_a_run_without_weights_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has no good checkpoint"):
        measure_run(make_run(tmp_path / "run"), [32])
    assert not (tmp_path / "run" / "speed.json").exists()


def test_sizes_are_those_of_training_and_its_multiples():
    assert default_sizes(32) == [32, 64, 128, 256]
    assert default_sizes(512) == [512, 1024]
    assert default_sizes(1536) == [1536]
