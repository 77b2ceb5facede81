import random
from itertools import chain

import numpy as np
import pytest
import torch
from PIL import Image

from castling.tasks.batches import EpochBatches, Key, Shard
from castling.tasks.pictures import (
    PictureLoader,
    Pictures,
    WrongAnnotation,
    in_channels,
    pictures_in,
    read_picture,
    upright,
)
from castling.tasks.prediction import open_picture
from castling.tasks.preparation import PictureConfig, VariationConfig, eval_transform, train_transform

NOTHING = VariationConfig(crop_scale=None, flip=0, color_jitter=0, auto_augment=None, erasing=0)
EVERYTHING = VariationConfig(erasing=1.0)
GREY = PictureConfig(image_size=8, channels=1, mean=(0.0,), std=(1.0,), crop_share=1.0)
COLOUR = PictureConfig(image_size=8, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), crop_share=1.0)


class Album:
    """Pictures in memory; a picture that is None cannot be read. What is known of each is ten times its place."""

    def __init__(self, pictures):
        self.pictures = pictures

    def __len__(self):
        return len(self.pictures)

    def name(self, index):
        return f"album/{index}"

    def read(self, index):
        if self.pictures[index] is None:
            raise OSError("broken")
        return self.pictures[index], 10 * index


class Shown:
    def __init__(self, transform):
        self.transform = transform

    def __call__(self, picture, known):
        return {"image": self.transform(picture), "known": known}


def mistaken(picture):
    raise OSError("a mistake in a transform")  # an error that reading has too


def noise(seed=0, size=(8, 8), mode="RGB"):
    channels = {"L": (), "RGB": (3,)}[mode]
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size[::-1], *channels), np.uint8))


def album(*broken, count=5):
    return Album([None if index in broken else noise(index) for index in range(count)])


def training(source, seed=0, vary=NOTHING, data=COLOUR):
    return Pictures(source, Shown(train_transform(data, vary)), data.channels, seed)


def evaluation(source, data=COLOUR):
    return Pictures(source, Shown(eval_transform(data)), data.channels)


def told(loader):
    """What the loader tells of unreadable pictures, as it goes."""
    pairs = []
    loader.on_unreadable = pairs.extend
    return pairs


@pytest.fixture
def twins():
    """The same picture twice, fully augmented."""
    return training(Album([noise(), noise()]), seed=3, vary=EVERYTHING)


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
    other = Pictures(twins.source, twins.transform, twins.channels, seed=4)
    assert not torch.equal(other[Key(1, 0)]["image"], twins[Key(1, 0)]["image"])


def test_augmentation_does_not_depend_on_the_workers():
    found = []
    for workers in (0, 1):
        loader = PictureLoader(training(album(), vary=EVERYTHING), EpochBatches(5, 2, seed=0, repeats=2), workers)
        epochs = []
        for epoch, start in ((0, 0), (1, 0), (1, 1)):
            loader.seek(epoch, start)
            epochs.append([batch["image"] for batch in loader])
        assert [len(epoch) for epoch in epochs] == [2, 2, 1]
        assert torch.equal(epochs[1][1], epochs[2][0])
        found.append(torch.cat(list(chain(*epochs))))
    assert torch.equal(*found)


def test_evaluation_draws_no_random_numbers():
    before = random.getstate(), torch.get_rng_state()
    pictures = evaluation(album())
    assert torch.equal(pictures[Key(0, 1)]["image"], pictures[Key(5, 1, 2)]["image"])
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


def test_unreadable_picture_gives_way_to_the_next_in_training():
    example = training(album(1, 2))[Key(0, 1)]
    assert (example["index"], example["known"]) == (3, 30)
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


@pytest.mark.parametrize("workers", [0, 1])
def test_unreadable_picture_in_evaluation_is_left_out_and_told_of(workers):
    loader = PictureLoader(evaluation(album(1, 4)), EpochBatches(5, 3), workers)
    pairs = told(loader)
    batches = list(loader)
    assert [batch["index"].tolist() for batch in batches] == [[0, 2], [3]]
    assert [batch["known"].tolist() for batch in batches] == [[0, 20], [30]]
    assert [set(batch) for batch in batches] == 2 * [{"image", "known", "index"}]
    assert pairs == [("album/1", "OSError: broken"), ("album/4", "OSError: broken")]


def test_evaluation_batch_without_a_readable_picture_does_not_come():
    loader = PictureLoader(evaluation(album(2, 3)), EpochBatches(5, 2))
    pairs = told(loader)
    assert [batch["index"].tolist() for batch in loader] == [[0, 1], [4]]
    assert [name for name, _ in pairs] == ["album/2", "album/3"]


def test_training_batch_keeps_its_size_and_unreadable_pictures_are_told_of():
    loader = PictureLoader(training(album(1)), EpochBatches(5, 5, seed=0))
    pairs = told(loader)
    [batch] = loader
    assert sorted(batch["index"].tolist()) == [0, 2, 2, 3, 4]
    assert pairs == [("album/1", "OSError: broken")]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("seed", [None, 0], ids=["evaluation", "training"])
def test_error_of_a_transform_is_raised(workers, seed):
    # The first picture cannot be read, which must not hide that the others go through a mistake.
    loader = PictureLoader(Pictures(album(0), Shown(mistaken), seed=seed), EpochBatches(5, 5, seed), workers)
    pairs = told(loader)
    with pytest.raises(OSError, match="a mistake in a transform"):
        list(loader)
    assert pairs == []


class Mislabelled(Album):
    def read(self, index):
        if index == 1:
            raise WrongAnnotation("what is known of album/1 is wrong")
        return super().read(index)


@pytest.mark.parametrize("seed", [None, 0], ids=["evaluation", "training"])
@pytest.mark.parametrize("workers", [0, 1])
def test_wrong_annotation_is_raised_and_no_picture_gives_way(workers, seed):
    pictures = Pictures(Mislabelled([noise(index) for index in range(4)]), Shown(eval_transform(COLOUR)), 3, seed)
    with pytest.raises(WrongAnnotation, match="what is known of album/1 is wrong"):
        list(PictureLoader(pictures, EpochBatches(4, 2, seed), workers))


def test_nothing_readable_is_an_error_in_training():
    with pytest.raises(ValueError, match="3 pictures in a row cannot be read, first album/2: OSError: broken"):
        training(Album([None] * 3))[Key(0, 2)]


def test_reading_on_has_an_end():
    with pytest.raises(ValueError, match="100 pictures in a row cannot be read, first album/7"):
        training(Album([None] * 300))[Key(0, 7)]


def test_loader_stacks_and_knows_its_size():
    loader = PictureLoader(training(album()), EpochBatches(5, 4, seed=0, shard=Shard(1, 2), num_parts=2))
    assert (loader.num_examples, loader.num_batches, len(loader)) == (5, 1, 2)
    for batch in loader:
        assert batch["image"].shape == (1, 3, 8, 8)
        assert batch["known"].tolist() == [10 * index for index in batch["index"].tolist()]


def test_examples_can_be_collected_in_another_way():
    loader = PictureLoader(evaluation(album(1)), EpochBatches(5, 3), collate=lambda examples: {"count": len(examples)})
    assert list(loader) == [{"count": 2}, {"count": 2}]


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
    assert in_channels(picture, 3).tobytes() == in_channels(opaque, 3).tobytes() == opaque.tobytes()


@pytest.mark.parametrize("data", [GREY, COLOUR], ids=["grey", "colour"])
def test_sixteen_bit_picture_keeps_its_shades(tmp_path, data):
    shades = np.linspace(0, 65535, 64).reshape(8, 8)
    Image.fromarray(shades.astype(np.uint16)).save(tmp_path / "x.png")
    image = evaluation(Album([read_picture(tmp_path / "x.png")]), data)[Key(0, 0)]["image"]
    difference = np.abs(image[0].numpy() - shades / 65535).max()
    assert difference < 2 / 255


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("ending", ["jpg", "png", "tif", "webp"])
def test_a_picture_is_upright_whatever_way_the_camera_was_held(tmp_path, orientation, ending):
    corners = Image.new("RGB", (32, 16))  # red on the left half, blue below right
    corners.paste("red", (0, 0, 16, 16))
    corners.paste("blue", (16, 8, 32, 16))
    turns = Image.Transpose
    stored = {2: turns.FLIP_LEFT_RIGHT, 3: turns.ROTATE_180, 4: turns.FLIP_TOP_BOTTOM, 5: turns.TRANSPOSE}
    stored |= {6: turns.ROTATE_90, 7: turns.TRANSVERSE, 8: turns.ROTATE_270}
    exif = Image.Exif()
    exif[0x0112] = orientation
    turned = corners.transpose(stored[orientation]) if orientation > 1 else corners
    path = tmp_path / f"x.{ending}"
    turned.save(path, exif=exif)
    assert np.abs(np.asarray(read_picture(path)).astype(int) - np.asarray(corners)).mean() < 4
    with Image.open(path) as head:
        assert upright(head).size == corners.size
    assert open_picture(Image.open(path)).size == corners.size
    if ending != "tif":  # which PIL itself turns
        assert read_picture(path, turned.size).size == turned.size


def test_broken_exif_data_costs_no_picture(tmp_path):
    noise().save(tmp_path / "x.jpg", exif=b"Exif\x00\x00" + b"\xff" * 40)
    assert read_picture(tmp_path / "x.jpg").size == (8, 8)


def ramp():
    return np.linspace(0, 1, 64).reshape(8, 8)


def grey_ramp():
    return Image.fromarray((ramp() * 255).astype(np.uint8))


MOVING = {"save_all": True, "append_images": [Image.new("L", (8, 8))]}
MODES_READ = {
    "float": lambda: ({}, Image.fromarray(ramp().astype(np.float32)), "tif"),
    "16 bits": lambda: ({}, Image.fromarray((ramp() * 65535).astype(np.uint16)), "png"),
    "palette": lambda: ({}, grey_ramp().convert("P"), "png"),
    "alpha": lambda: (
        {},
        Image.merge("LA", [grey_ramp(), noise(mode="L")]),
        "png",
    ),
    "cmyk": lambda: ({}, grey_ramp().convert("RGB").convert("CMYK"), "tif"),
    "animated gif": lambda: (MOVING, grey_ramp(), "gif"),
    "animated webp": lambda: ({"lossless": True, **MOVING}, grey_ramp(), "webp"),
}


@pytest.mark.parametrize("mode", MODES_READ)
@pytest.mark.parametrize("channels", [1, 3])
def test_the_shades_of_every_mode_are_kept(tmp_path, mode, channels):
    options, picture, ending = MODES_READ[mode]()
    picture.save(tmp_path / f"x.{ending}", **options)
    read = np.asarray(in_channels(read_picture(tmp_path / f"x.{ending}"), channels)).reshape(8, 8, channels)
    assert np.abs(read / 255 - ramp()[..., None]).max() < 2 / 255


def test_black_and_white_is_0_and_255():
    assert in_channels(Image.new("1", (2, 2), 1), 1).getextrema() == (255, 255)


@pytest.mark.parametrize("value", [1.5, -0.1, float("nan")])
def test_floats_that_are_no_shades_are_said(value):
    with pytest.raises(ValueError, match="floats must lie from 0 to 1; got"):
        in_channels(Image.fromarray(np.full((4, 4), value, np.float32)), 3)


def test_picture_with_the_ending_of_another_format_is_read(tmp_path):
    for name, kind in (("x.png", "JPEG"), ("x.jpg", "PNG")):
        noise(mode="L").save(tmp_path / name, format=kind)
        picture = read_picture(tmp_path / name)
        assert (picture.format, picture.mode, picture.size) == (kind, "L", (8, 8))


def test_files_that_do_not_end_as_pictures_do_are_passed_over(tmp_path):
    (tmp_path / "deep/.hidden").mkdir(parents=True)
    for name in ("a.jpg", "deep/b.PNG", "deep/f.gif", "c.dat", ".d.png", "deep/.hidden/e.png"):
        noise().save(tmp_path / name, format="PNG")
    (tmp_path / "notes.txt").write_text("no picture")
    assert sorted(pictures_in(tmp_path, tmp_path)) == ["./a.jpg", "deep/b.PNG", "deep/f.gif"]
    assert sorted(pictures_in(tmp_path / "deep", tmp_path)) == ["deep/b.PNG", "deep/f.gif"]


def test_a_batch_is_its_examples_and_leaves_the_generators_alone():
    pictures, keys = training(album(1), seed=3, vary=EVERYTHING), [Key(2, 0), Key(2, 1), Key(2, 4, 1)]
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    batch = pictures.__getitems__(keys)
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before
    for example, key in zip(batch, keys, strict=True):
        alone = pictures[key]
        assert torch.equal(example["image"], alone["image"])
        assert (example["index"], example["unreadable"]) == (alone["index"], alone["unreadable"])


def test_a_transform_that_fails_leaves_the_generators_alone():
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    with pytest.raises(OSError, match="a mistake in a transform"):
        Pictures(album(), Shown(mistaken), seed=1).__getitems__([Key(0, 0)])
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before
