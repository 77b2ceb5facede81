"""Which networks a certificate compares, by what the run was."""

import pytest

from castling.training import parse_recipe, train
from castling.workflows.castle_run import castle_run

MICRO = {
    "task": "classification",
    "model": {
        "name": "vit_tiny_patch16_224",
        "options": {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2},
    },
    "data": {"source": "digits", "image_size": 16, "channels": 1, "mean": [0.3], "std": [0.4], "crop_share": 1.0},
    "augment": {"mixup": 0.0, "cutmix": 0.0, "auto_augment": None},
    "training": {"batch_size": 64, "max_steps": 1, "workers": 0},
}


def run_of(tmp_path, **changes):
    values = {
        key: {**value, **changes.get(key, {})} if isinstance(value, dict) else value for key, value in MICRO.items()
    }
    train(parse_recipe(values), tmp_path / "run")
    return tmp_path / "run"


def test_a_converted_network_without_weights_has_no_original(tmp_path):
    """It was trained from nothing: what it would have been with softmax says nothing."""
    blend = {"blend": {"kind": "fixed", "start": 1.0}}
    folder = run_of(tmp_path, model={"convert": {"calibrate": 0}}, training=blend)
    certificate, castled = castle_run(folder)
    assert list(certificate.networks) == ["converted", "castled"]
    assert (certificate.verdict, castled) == ("free", folder / "castled")


def test_a_network_that_still_holds_softmax_is_refused(tmp_path):
    folder = run_of(tmp_path, model={"convert": {"calibrate": 0}})
    with pytest.raises(ValueError, match="still hold the host's softmax"):
        castle_run(folder)


def test_a_softmax_network_has_nothing_to_castle(tmp_path):
    folder = run_of(tmp_path)
    with pytest.raises(ValueError, match="has no auxiliary branch"):
        castle_run(folder)
    assert not (folder / "certificate.json").exists()
