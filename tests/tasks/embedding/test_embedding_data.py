import pytest
import torch
from PIL import Image

from castling.tasks.embedding.data import FolderConfig, GentleConfig, ImageOnly
from castling.tasks.preparation import PictureConfig, VariationConfig


def test_example_is_the_picture_alone():
    example = ImageOnly(lambda picture: torch.ones(picture.size))(Image.new("L", (4, 3)), None)
    assert set(example) == {"image"}
    assert example["image"].shape == (4, 3)


def test_settings_are_those_of_every_task():
    assert FolderConfig(image_size=8, root="x") == FolderConfig(**vars(PictureConfig(image_size=8)), root="x")
    with pytest.raises(ValueError, match="image_size must be at least 1; got 0"):
        FolderConfig(image_size=0)
    assert isinstance(GentleConfig(), VariationConfig)
    with pytest.raises(ValueError, match="flip is a probability"):
        GentleConfig(flip=-1)
