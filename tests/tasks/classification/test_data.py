import random
from itertools import chain

import numpy as np
import pytest
import torch
from PIL import Image

from castling.tasks.batches import EpochBatches, Key
from castling.tasks.classification.data import (
    AugmentConfig,
    DataConfig,
    Pictures,
    collate,
    eval_transform,
    make_loader,
    make_source,
    train_transform,
)

NOTHING = AugmentConfig(None, flip=0, color_jitter=0, auto_augment=None, erasing=0, mixup=0, cutmix=0)
GREY = DataConfig(image_size=8, channels=1, mean=(0.0,), std=(1.0,), crop_share=1.0)
COLOUR = DataConfig(image_size=8, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), crop_share=1.0)


class Album:
    """Pictures in memory; a picture that is None cannot be read. The class of each is ten times its place."""

    def __init__(self, pictures):
        self.pictures, self.labels = pictures, ["a"]

    def __len__(self):
        return len(self.pictures)

    def name(self, index):
        return f"album/{index}"

    def read(self, index):
        if self.pictures[index] is None:
            raise OSError("broken")
        return self.pictures[index], 10 * index


def noise(seed=0, size=(8, 8), mode="RGB"):
    channels = {"L": (), "RGB": (3,)}[mode]
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size[::-1], *channels), np.uint8))


def album(*broken, count=5):
    return Album([None if index in broken else noise(index) for index in range(count)])


def training(source, seed=0, augment=NOTHING, data=COLOUR):
    return Pictures(source, train_transform(data, augment), data, seed)


def evaluation(source, data=COLOUR):
    return Pictures(source, eval_transform(data), data)


@pytest.fixture
def twins():
    """The same picture twice, fully augmented."""
    return training(Album([noise(), noise()]), seed=3, augment=AugmentConfig(erasing=1.0))


def test_augmentation_does_not_depend_on_the_global_generators(twins):
    first = twins[Key(1, 0)]["image"]
    random.seed(9)
    np.random.seed(9)
    torch.manual_seed(9)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert torch.equal(twins[Key(1, 0)]["image"], first)
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before


@pytest.mark.parametrize("key", [Key(2, 0), Key(1, 1), Key(1, 0, 1)], ids=["epoch", "example", "repeat"])
def test_augmentation_depends_on_epoch_example_and_repeat(twins, key):
    assert not torch.equal(twins[key]["image"], twins[Key(1, 0)]["image"])


def test_augmentation_depends_on_the_seed(twins):
    other = Pictures(twins.source, twins.transform, twins.data, seed=4)
    assert not torch.equal(other[Key(1, 0)]["image"], twins[Key(1, 0)]["image"])


def test_augmentation_does_not_depend_on_the_workers():
    found = []
    for workers in (0, 1):
        batches = EpochBatches(5, 2, seed=0, repeats=2)
        loader = make_loader(training(album(), augment=AugmentConfig(erasing=1.0)), batches, workers)
        epochs = []
        for epoch, start in ((0, 0), (1, 0), (1, 1)):
            batches.seek(epoch, start)
            epochs.append([batch["image"] for batch in loader])
        assert [len(epoch) for epoch in epochs] == [2, 2, 1]
        assert torch.equal(epochs[1][1], epochs[2][0])
        found.append(torch.cat(list(chain(*epochs))))
    assert torch.equal(*found)


def test_unreadable_picture_gives_way_to_the_next_in_training():
    example = training(album(1, 2))[Key(0, 1)]
    assert (example["index"], example["target"]) == (3, 30)
    assert torch.equal(example["image"], training(album())[Key(0, 3)]["image"])
    assert example["unreadable"] == [("album/1", "OSError: broken"), ("album/2", "OSError: broken")]


def test_last_picture_gives_way_to_the_first():
    assert training(album(4))[Key(0, 4)]["index"] == 0


def test_picture_that_cannot_be_converted_is_unreadable():
    source = album()
    source.pictures[1] = Image.new("LAB", (8, 8))
    example = training(source, data=GREY)[Key(0, 1)]
    assert example["index"] == 2
    assert [name for name, _ in example["unreadable"]] == ["album/1"]


def test_unreadable_picture_in_evaluation_is_empty_and_of_no_class():
    example = evaluation(album(1))[Key(0, 1)]
    assert (example["index"], example["target"]) == (1, -1)
    assert torch.equal(example["image"], torch.zeros(3, 8, 8))
    assert example["unreadable"] == [("album/1", "OSError: broken")]


def test_names_of_unreadable_pictures_travel_with_the_batch():
    batches = list(make_loader(evaluation(album(1, 4)), EpochBatches(5, 3), workers=0))
    assert [batch["target"].tolist() for batch in batches] == [[0, -1, 20], [30, -1]]
    assert [batch["index"].tolist() for batch in batches] == [[0, 1, 2], [3, 4]]
    assert [batch["unreadable"] for batch in batches] == [
        [("album/1", "OSError: broken")],
        [("album/4", "OSError: broken")],
    ]


def test_nothing_readable_is_an_error():
    with pytest.raises(ValueError, match="3 pictures in a row cannot be read, first album/2: OSError: broken"):
        training(Album([None] * 3))[Key(0, 2)]


def test_reading_on_has_an_end():
    with pytest.raises(ValueError, match="100 pictures in a row cannot be read, first album/7"):
        training(Album([None] * 300))[Key(0, 7)]


def test_collate_stacks():
    pictures = evaluation(album())
    batch = collate([pictures[Key(0, 3)], pictures[Key(0, 1)]])
    assert batch["image"].shape == (2, 3, 8, 8)
    assert batch["target"].tolist() == [30, 10]
    assert batch["index"].tolist() == [3, 1]
    assert batch["unreadable"] == []


def test_grey_picture_for_a_colour_network():
    picture = noise(mode="L")
    image = evaluation(Album([picture]))[Key(0, 0)]["image"]
    assert torch.allclose(image, torch.tensor(np.asarray(picture) / 255, dtype=torch.float32).expand(3, 8, 8))


def test_colour_picture_for_a_grey_network():
    picture = noise()
    image = evaluation(Album([picture]), GREY)[Key(0, 0)]["image"]
    expected = np.asarray(picture) @ [0.299, 0.587, 0.114] / 255  # ITU-R 601-2
    assert image.shape == (1, 8, 8)
    assert np.abs(image[0].numpy() - expected).max() < 1 / 255


def test_transparent_picture_for_a_colour_network():
    picture = noise()
    opaque = picture.copy()
    picture.putalpha(noise(1, mode="L"))
    images = [evaluation(Album([each]))[Key(0, 0)]["image"] for each in (opaque, picture)]
    assert torch.equal(*images)


@pytest.mark.parametrize("data", [GREY, COLOUR], ids=["grey", "colour"])
def test_sixteen_bit_picture_keeps_its_shades(tmp_path, data):
    shades = np.linspace(0, 65535, 64).reshape(8, 8)
    Image.fromarray(shades.astype(np.uint16)).save(tmp_path / "x.png")
    with Image.open(tmp_path / "x.png") as picture:
        image = evaluation(Album([picture]), data)[Key(0, 0)]["image"]
    difference = np.abs(image[0].numpy() - shades / 65535).max()
    assert difference < 2 / 255


def test_eval_transform_resizes_and_crops_the_centre():
    data = DataConfig(image_size=8, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7), crop_share=0.5)
    picture = noise(size=(40, 30))
    expected = np.asarray(picture.resize((21, 16), Image.Resampling.BICUBIC).crop((6, 4, 14, 12))) / 255  # (H, W, 3)
    expected = torch.tensor((expected - data.mean) / data.std, dtype=torch.float32).permute(2, 0, 1)
    assert torch.allclose(eval_transform(data)(picture), expected, atol=1e-6)


def test_evaluation_draws_no_random_numbers():
    before = random.getstate(), torch.get_rng_state()
    pictures = evaluation(album())
    assert torch.equal(pictures[Key(0, 1)]["image"], pictures[Key(5, 1, 2)]["image"])
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


def test_interpolation_is_used():
    picture = noise()
    data = DataConfig(image_size=16, mean=(0.0,) * 3, std=(1.0,) * 3, crop_share=1.0, interpolation="nearest")
    expected = torch.tensor(np.asarray(picture)).permute(2, 0, 1).repeat_interleave(2, 1).repeat_interleave(2, 2) / 255
    for transform in (eval_transform(data), train_transform(data, NOTHING)):
        assert torch.allclose(transform(picture), expected)


def test_training_without_augmentation_is_evaluation():
    assert torch.equal(training(album())[Key(0, 2)]["image"], evaluation(album())[Key(0, 2)]["image"])


@pytest.mark.parametrize(
    "options",
    [
        {"crop_scale": (0.2, 0.3)},
        {"flip": 1.0},
        {"color_jitter": 0.9},
        {"auto_augment": "rand-m9-mstd0.5"},
        {"erasing": 1.0},
    ],
    ids=lambda options: next(iter(options)),
)
def test_each_augmentation_changes_pictures(options):
    off = {"crop_scale": None, "flip": 0, "color_jitter": 0, "auto_augment": None, "erasing": 0}
    augmented = training(album(), augment=AugmentConfig(**{**off, **options}))
    plain = evaluation(album())
    keys = [Key(0, example) for example in range(5)]
    assert any(not torch.equal(augmented[key]["image"], plain[key]["image"]) for key in keys)


def test_flip_mirrors():
    augment = AugmentConfig(None, flip=1.0, color_jitter=0, auto_augment=None, erasing=0)
    image = training(album(), augment=augment)[Key(0, 2)]["image"]
    assert torch.equal(image, evaluation(album())[Key(0, 2)]["image"].flip(-1))


def test_grey_pictures_are_augmented_too():
    pictures = training(Album([noise(mode="L")]), augment=AugmentConfig(erasing=1.0), data=GREY)
    for epoch in range(50):  # until every operation of the policy had its turn
        example = pictures[Key(epoch, 0)]
        assert example["image"].shape == (1, 8, 8)
        assert example["unreadable"] == []


def test_make_source_opens_what_the_settings_say(tmp_path, monkeypatch):
    for split in ("train", "val"):
        (tmp_path / split / "cat").mkdir(parents=True)
        noise().save(tmp_path / split / "cat" / "x.png")
    assert make_source(DataConfig(source="folder", root=str(tmp_path)), "val").name(0) == "val/cat/x.png"
    monkeypatch.setattr("castling.tasks.classification.data.open_source", lambda *args, **options: options)
    data = DataConfig(source="huggingface", name="mnist", image_column="img", label_column="digit")
    assert make_source(data, "val") == {"name": "mnist", "image_column": "img", "label_column": "digit"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"interpolation": "bicubik"}, "unknown interpolation 'bicubik': did you mean 'bicubic'"),
        ({"channels": 2}, r"channels must be one of \[1, 3\]; got 2"),
        ({"channels": 1}, "mean and std need 1 numbers each"),
        ({"std": (1.0,)}, "mean and std need 3 numbers each"),
        ({"image_size": 0}, "image_size must be at least 1; got 0"),
        ({"crop_share": 0.0}, r"crop_share must lie in \(0, 1\]; got 0"),
        ({"crop_share": 1.1}, r"crop_share must lie in \(0, 1\]; got 1.1"),
    ],
)
def test_data_settings_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        DataConfig(**options)


def test_augment_settings_are_checked():
    with pytest.raises(ValueError, match="repeats must be at least 1; got 0"):
        AugmentConfig(repeats=0)
    for name in ("flip", "color_jitter", "erasing", "mixup", "cutmix"):
        with pytest.raises(ValueError, match=f"{name}.* must be at least 0"):
            AugmentConfig(**{name: -0.1})
