import numpy as np
import pytest
import torch

from castling import castled
from castling.tasks.classification.distillation import write_logits
from castling.tasks.picture_sources import open_source
from castling.training import parse_recipe, train
from castling.training.saved import open_model


def design(source):
    """Pixels of 8 x 8 pictures and a constant, `(examples, 65)`."""
    pixels = source.pictures.reshape(len(source), 64) / 255
    return np.c_[pixels, np.ones(len(source))]


@pytest.fixture
def teacher():
    """A linear map, fitted to digits that are called by the name of the digit three above."""
    pytest.importorskip("sklearn")
    source = open_source("digits", "train")
    weights, *_ = np.linalg.lstsq(design(source), np.eye(10)[(source.targets + 3) % 10], rcond=None)
    return lambda source: design(source) @ weights


@pytest.mark.slow
def test_student_learns_what_its_teacher_says_and_not_the_labels(tmp_path, teacher):
    source = open_source("digits", "train")
    names = [source.name(index) for index in range(len(source))]
    order = np.random.default_rng(0).permutation(len(names))
    logits = torch.tensor(teacher(source)[order], dtype=torch.float32)
    write_logits(tmp_path / "logits", logits, [names[index] for index in order])
    recipe = parse_recipe(
        {
            "task": "classification",
            "model": {
                "name": "castling_deit_tiny_patch16_224",
                "options": {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 1, "num_heads": 2},
            },
            "data": {
                "source": "digits",
                "image_size": 16,
                "channels": 1,
                "mean": [0.305],
                "std": [0.376],
                "crop_share": 1.0,
            },
            "augment": {
                "crop_scale": None,
                "flip": 0,
                "color_jitter": 0,
                "auto_augment": None,
                "erasing": 0,
                "mixup": 0,
                "cutmix": 0,
            },
            "distillation": {"kind": "hard", "alpha": 1.0, "logits": str(tmp_path / "logits")},
            "training": {
                "epochs": 8,
                "batch_size": 32,
                "learning_rate": {"peak": 4e-3, "warmup_epochs": 1},
                "threshold": {"kind": "linear", "start": 0.02, "end": 1.0, "since": 0.3, "until": 0.8},
                "clip_norm": 1.0,
                "workers": 0,
                "evaluate_every": 8,
            },
        }
    )
    train(recipe, tmp_path / "run")
    saved, held_out = open_model(tmp_path / "run"), open_source("digits", "val")
    batches = saved.task.loader("val", batch_size=64)
    with torch.no_grad(), castled(saved.network):
        choices = torch.cat([saved.network(batch["image"]).argmax(-1) for batch in batches]).numpy()
    assert (choices == teacher(held_out).argmax(-1)).mean() > 0.8
    assert (choices == held_out.targets).mean() < 0.1
