import numpy as np
import pytest
import torch
from PIL import Image
from small_task import CLASSES

from castling.tasks.classification.data import DataConfig
from castling.tasks.classification.distillation import write_logits


@pytest.fixture
def data(tmp_path):
    """A folder of twelve training and six validation pictures of three classes."""
    noise = np.random.default_rng(0)
    for split, count in (("train", 4), ("val", 2)):
        for label in CLASSES:
            (tmp_path / "pictures" / split / label).mkdir(parents=True)
            for number in range(count):
                pixels = noise.integers(0, 256, (32, 32), np.uint8)
                Image.fromarray(pixels).save(tmp_path / "pictures" / split / label / f"{number}.png")
    root = str(tmp_path / "pictures")
    return DataConfig(source="folder", root=root, image_size=32, channels=1, mean=(0.5,), std=(0.5,))


@pytest.fixture
def names():
    return [f"train/{label}/{number}.png" for label in CLASSES for number in range(4)]


@pytest.fixture
def logits_folder(tmp_path, names):
    """Logits of a teacher whose choice is class 2, 1, 0, 2, 1, ... whatever the labels."""
    write_logits(tmp_path / "logits", 5 * torch.eye(3)[[2, 1, 0]].repeat(4, 1), names)
    return str(tmp_path / "logits")
