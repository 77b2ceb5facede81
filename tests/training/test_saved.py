"""Models on disk, opened as what they are."""

import json
import shutil

import pytest
import torch

from castling import castle, is_castled
from castling.training import train
from castling.training.saved import occupancy_history, open_model, write_castled


@pytest.fixture(scope="module")
def run_folder(digits_run):
    return digits_run


def test_a_run_is_opened_with_its_branch_threshold_and_task(run_folder):
    saved = open_model(run_folder)
    assert not is_castled(saved.network)
    assert not saved.network.training
    assert saved.network.blocks[0].attn.aux.threshold == 1.0  # where the schedule ended
    assert saved.task.facts == {"labels": [str(number) for number in range(10)]}
    assert saved.step == 44


def test_castled_weights_are_those_of_the_run(run_folder):
    saved, castled = open_model(run_folder), open_model(run_folder / "castled")
    assert is_castled(castled.network)
    assert castled.step is None
    images = torch.randn(2, 1, 32, 32)
    assert torch.equal(castled.network(images), castle(saved.network)(images))


def test_a_checkpoint_is_chosen_in_a_run_only(run_folder):
    assert open_model(run_folder, "best").step in (22, 44)
    with pytest.raises(ValueError, match=r"castled holds castled weights and no checkpoints; got checkpoint 'last'"):
        open_model(run_folder / "castled", "last")
    with pytest.raises(ValueError, match="unknown checkpoint 'first'"):
        open_model(run_folder, "first")


def test_the_network_needs_no_data(micro, tmp_path, few_digits):
    train(micro("training.max_steps=1"), tmp_path / "run")
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace(str(few_digits), "/gone"))
    saved = open_model(tmp_path / "run")
    assert saved.network(torch.zeros(1, 1, 16, 16)).shape == (1, 10)
    with pytest.raises(FileNotFoundError, match="/gone"):
        saved.task.loader("val", 8)


def test_castled_weights_are_written_with_all_that_they_need(micro, tmp_path):
    train(micro("training.max_steps=1"), tmp_path / "run")
    folder = write_castled(tmp_path / "run", castle(open_model(tmp_path / "run").network), {"verdict": "free"})
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "config.yaml",
        "facts.json",
        "network.json",
        "certificate.json",
        "model.safetensors",
        "manifest.json",
    }
    assert is_castled(open_model(folder).network)


@pytest.fixture
def castled_folder(run_folder, tmp_path):
    return shutil.copytree(run_folder / "castled", tmp_path / "castled")


@pytest.mark.parametrize("name", ["model.safetensors", "config.yaml", "facts.json", "network.json", "certificate.json"])
@pytest.mark.parametrize("damage", ["flipped", "cut", "gone"])
def test_a_castled_folder_is_opened_whole_or_not_at_all(castled_folder, name, damage):
    path = castled_folder / name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.unlink() if damage == "gone" else path.write_bytes(content if damage == "flipped" else content[:-1])
    with pytest.raises(ValueError, match=rf"castled is damaged: .*{name}.*castle again: castling castle"):
        open_model(castled_folder)


def test_a_manifest_names_every_file_of_a_castled_folder(castled_folder):
    manifest = castled_folder / "manifest.json"
    checksums = json.loads(manifest.read_text())
    for content, message in [
        (json.dumps({**checksums, "gone.json": "0"}), "gone.json"),
        (json.dumps({key: value for key, value in checksums.items() if key != "facts.json"}), "not name facts.json"),
        ("[[]]", "damaged"),
        ("{", "damaged"),
    ]:
        manifest.write_text(content)
        with pytest.raises(ValueError, match=message):
            open_model(castled_folder)
    manifest.unlink()
    with pytest.raises(ValueError, match=r"incomplete: it has no manifest.json; copy it again"):
        open_model(castled_folder)


@pytest.mark.parametrize(
    ("name", "before", "after", "message"),
    [
        ("config.yaml", "depth: 1", "depth: 2", r"blocks.1.*none in the weights, \(.*\) in the network"),
        ("config.yaml", "embed_dim: 16", "embed_dim: 32", r"\(16,\) in the weights, \(32,\) in the network"),
        ("facts.json", '"9"', '"9", "10"', r"head.bias, \(10,\) in the weights, \(11,\) in the network"),
    ],
)
def test_a_run_whose_files_were_edited_says_what_does_not_fit(run_folder, tmp_path, name, before, after, message):
    folder = shutil.copytree(run_folder, tmp_path / "run")
    text = (folder / name).read_text()
    assert before in text
    (folder / name).write_text(text.replace(before, after))
    with pytest.raises(ValueError, match=rf"run: its weights are not those of .*config.yaml and facts.json.*{message}"):
        open_model(folder)


def test_the_history_is_per_layer_and_head_from_step_0(run_folder):
    step, occupancy = occupancy_history(run_folder)[0]
    assert step == 0
    assert len(occupancy["blocks.0.attn"]) == 2


def test_a_folder_without_weights_is_said(micro, tmp_path):
    with pytest.raises(ValueError, match="is no run folder"):
        open_model(tmp_path)
    train(micro("training.max_steps=1"), tmp_path / "run")
    for folder in (tmp_path / "run" / "checkpoints").iterdir():
        (folder / "manifest.json").unlink()
    with pytest.raises(ValueError, match=r"no checkpoint of .* is whole"):
        open_model(tmp_path / "run")
