"""What a prediction draws is written as it is meant: pictures in colours, masks with their palette."""

import argparse
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from castling.cli import predict
from castling.tasks.prediction import PicturePredictor


class Drawn:
    error = None

    def __init__(self, name, image):
        self.name, self.image = name, image

    def line(self):
        return self.name

    def draw(self, picture):
        return self.image


def with_palette():
    image = Image.fromarray(np.array([[0, 1], [2, 2]], np.uint8))
    image.putpalette([9, 9, 9, 200, 0, 0, 0, 0, 200])
    return image


@pytest.mark.parametrize(("image", "mode"), [(with_palette(), "P"), (Image.new("L", (2, 2), 7), "RGB")])
def test_a_palette_is_kept_when_it_is_written(image, mode, tmp_path, monkeypatch):
    Image.new("RGB", (2, 2)).save(tmp_path / "photo.png")
    network = nn.Linear(1, 1)
    predictor = PicturePredictor(
        network, lambda picture: torch.zeros(1), lambda outputs, seen: [Drawn(seen[0].name, image)], 3
    )
    task = SimpleNamespace(PredictConfig=SimpleNamespace, predictor=lambda network, options: predictor)
    monkeypatch.setattr(predict.castling, "open", lambda *_: SimpleNamespace(task=task, network=network))
    monkeypatch.setattr(predict, "from_mapping", lambda kind, values: None)
    flags = {
        "model": tmp_path,
        "checkpoint": None,
        "set": [],
        "batch_size": 1,
        "json": False,
        "quiet": False,
        "draw": tmp_path / "out",
    }
    assert predict.run(argparse.Namespace(pictures=[str(tmp_path / "photo.png")], **flags)) == 0
    with Image.open(tmp_path / "out" / "0000-photo.png") as saved:
        assert saved.mode == mode
        assert np.asarray(saved).shape[:2] == (2, 2)
        if mode == "P":
            assert np.asarray(saved).tolist() == [[0, 1], [2, 2]]
