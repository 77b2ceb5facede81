from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from castling.tasks.classification.data import AugmentConfig, DataConfig, Labelled, make_source
from castling.tasks.preparation import PictureConfig, VariationConfig, eval_transform


def test_example_has_the_picture_and_its_class():
    data = DataConfig(image_size=8, channels=1, mean=(0.4,), std=(0.5,), crop_share=1.0)
    example = Labelled(eval_transform(data))(Image.new("L", (8, 8), 255), 7)
    assert set(example) == {"image", "target"}
    assert example["target"] == 7
    assert torch.allclose(example["image"], torch.full((1, 8, 8), 1.2))


def test_settings_are_those_of_every_task_and_more():
    assert DataConfig(image_size=8) == DataConfig(**{**vars(PictureConfig(image_size=8)), "source": "digits"})
    with pytest.raises(ValueError, match="image_size must be at least 1; got 0"):
        DataConfig(image_size=0)
    assert AugmentConfig() == AugmentConfig(**vars(VariationConfig()), mixup=0.8, cutmix=1.0, repeats=1)


def test_make_source_opens_what_the_settings_say(tmp_path, monkeypatch):
    for place in ("train/cat", "val/cat"):
        (tmp_path / place).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / place / "x.png")
    with pytest.raises(ValueError, match="a classifier needs two classes or more; there is one only: cat"):
        make_source(DataConfig(source="folder", root=str(tmp_path)), "train")
    (tmp_path / "train" / "dog").mkdir()
    assert make_source(DataConfig(source="folder", root=str(tmp_path)), "val").name(0) == "val/cat/x.png"
    given = {}

    def open_source(*args, **options):
        given.update(options)
        return SimpleNamespace(labels=["0", "1"])

    monkeypatch.setattr("castling.tasks.classification.data.open_source", open_source)
    make_source(DataConfig(source="huggingface", name="mnist", image_column="img", label_column="digit"), "val")
    assert given == {"name": "mnist", "image_column": "img", "label_column": "digit"}


def test_augment_settings_are_checked():
    with pytest.raises(ValueError, match="repeats must be at least 1; got 0"):
        AugmentConfig(repeats=0)
    for name in ("color_jitter", "mixup", "cutmix"):
        with pytest.raises(ValueError, match=f"{name}.* must be at least 0"):
            AugmentConfig(**{name: -0.1})
