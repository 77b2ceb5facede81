from dataclasses import dataclass

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torchvision.transforms.functional import pil_to_tensor

from castling.tasks.prediction import Failed, PicturePredictor, with_caption
from castling.tasks.preparation import PictureConfig, eval_transform


def settings(channels=1):
    return PictureConfig(image_size=32, channels=channels, mean=(0.4,) * channels, std=(0.3,) * channels)


def make_network(channels=1):
    torch.manual_seed(0)
    network = timm.create_model(
        "castling_deit_tiny_patch16_224",
        num_classes=4,
        in_chans=channels,
        img_size=32,
        patch_size=4,
        embed_dim=32,
        depth=1,
        num_heads=2,
    )
    torch.nn.init.normal_(network.head.weight)  # so that pictures differ in more than the last digits
    return network


@dataclass
class Shares:
    name: str
    size: tuple[int, int]
    values: list[float]
    error: None = None


def interpret(outputs, seen):
    shares = outputs.softmax(-1).tolist()
    return [Shares(picture.name, picture.size, values) for picture, values in zip(seen, shares, strict=True)]


def make_predictor(channels=1, network=None):
    network = make_network(channels) if network is None else network
    return PicturePredictor(network, eval_transform(settings(channels)), interpret, channels)


@pytest.fixture(scope="module")
def predictor():
    return make_predictor()


def pixels(seed, size=(40, 50), channels=()):
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 5, *channels), np.uint8)
    return coarse.repeat(size[0] // 4, 0).repeat(size[1] // 5, 1)  # (H, W) or (H, W, C)


def expected(predictor, picture):
    image = predictor.prepare(picture)
    with torch.no_grad():
        return predictor.network(image[None]).softmax(-1)[0].tolist()


def shares_of(predictor, seed):
    return pytest.approx(expected(predictor, Image.fromarray(pixels(seed))), abs=1e-5)


@pytest.fixture
def files(tmp_path):
    """Pictures a.png, b.png and deep/c.png."""
    (tmp_path / "deep").mkdir()
    for seed, name in enumerate(("a.png", "b.png", "deep/c.png")):
        Image.fromarray(pixels(seed)).save(tmp_path / name)
    return tmp_path


def test_outputs_are_interpreted_with_what_was_seen(predictor):
    [found] = predictor(Image.fromarray(pixels(0)))
    assert found.values == shares_of(predictor, 0)
    assert max(found.values) - min(found.values) > 0.1
    assert (found.name, found.size) == ("0", (50, 40))


@pytest.mark.parametrize("convert", [str, lambda path: path], ids=["str", "Path"])
def test_path(predictor, files, convert):
    [found] = predictor(convert(files / "a.png"))
    assert found.name == str(files / "a.png")
    assert found.values == shares_of(predictor, 0)


def test_folder_stands_for_all_pictures_in_it(predictor, files):
    (files / "notes.txt").write_text("no picture")
    found = predictor(files)
    assert [one.name for one in found] == [str(files / name) for name in ("a.png", "b.png", "deep/c.png")]
    for seed, one in enumerate(found):
        assert one.values == shares_of(predictor, seed)


GREY, COLOUR = pixels(0), pixels(0, channels=(3,))


@pytest.mark.parametrize(
    ("picture", "same"),
    [
        (GREY, GREY),
        (GREY[..., None], GREY),
        (GREY / 255, GREY),
        ((GREY / 255).astype(np.float32), GREY),
        ((COLOUR / 255).astype(np.float32), COLOUR),
        (COLOUR, COLOUR),
        (torch.tensor(GREY), GREY),
        (torch.tensor(GREY)[None], GREY),
        (torch.tensor(GREY)[None] / 255, GREY),
        (torch.tensor(COLOUR).permute(2, 0, 1), COLOUR),
        (torch.tensor(COLOUR).permute(2, 0, 1) / 255, COLOUR),
    ],
    ids=lambda value: f"{type(value).__name__} {value.dtype} {tuple(value.shape)}",
)
@pytest.mark.parametrize("channels", [1, 3])
def test_arrays_and_tensors(picture, same, channels):
    predictor = make_predictor(channels)
    [found] = predictor(picture)
    wanted = expected(predictor, Image.fromarray(same).convert("L" if channels == 1 else "RGB"))
    assert found.values == pytest.approx(wanted, abs=0.02)  # a float may lose one of 255 shades


def test_list_of_different_forms_keeps_its_order(predictor, files):
    found = predictor([pixels(5), files / "deep", Image.fromarray(pixels(6)), str(files / "b.png")])
    assert [one.name for one in found] == ["0", str(files / "deep/c.png"), "2", str(files / "b.png")]
    for one, seed in zip(found, (5, 2, 6, 1), strict=True):
        assert one.values == shares_of(predictor, seed)


def test_batches_give_what_single_pictures_give(predictor):
    pictures, done = [pixels(seed) for seed in range(7)], []
    one_by_one = predictor(pictures, batch_size=1)
    batched = predictor(pictures, batch_size=3, on_batch=done.append)
    assert done == [3, 3, 1]
    assert [one.name for one in batched] == list("0123456")
    for single, other in zip(one_by_one, batched, strict=True):
        assert single.values == pytest.approx(other.values, abs=1e-5)


class Sizes(torch.nn.Module):
    """Says the sizes that it sees; pictures that come together have one."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.seen = []

    def forward(self, images):
        self.seen.append(tuple(images.shape))
        return images.mean((2, 3)) * self.weight


def test_inputs_of_several_sizes_are_seen_size_by_size_and_keep_their_order(files):
    sizes = [(40, 50), (20, 25), (40, 50), (24, 25), (20, 25)]
    pictures = [pixels(seed, size) for seed, size in enumerate(sizes)]
    network = Sizes()
    predictor = PicturePredictor(network, lambda picture: pil_to_tensor(picture) / 255, interpret, 1)
    (files / "bad.png").write_text("no picture")
    found = predictor([*pictures[:2], files / "bad.png", *pictures[2:]])
    assert network.seen == [(2, 1, 40, 50), (2, 1, 20, 25), (1, 1, 24, 25)]
    assert [one.name for one in found] == ["0", "1", str(files / "bad.png"), "3", "4", "5"]
    assert [one.size for one in found if one.error is None] == [size[::-1] for size in sizes]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("bb.png", b""),
        ("bb.jpg", b"no picture"),
        ("bb.png", b"\x89PNG\r\n\x1a\n"),
        ("bb.ppm", b"P6\n"),
    ],
    ids=["empty", "text", "truncated png", "truncated ppm"],
)
@pytest.mark.parametrize("batch_size", [1, 32])
def test_unreadable_file_does_not_stop_the_others(predictor, files, batch_size, name, content):
    (files / name).write_bytes(content)
    done = []
    found = predictor(files, batch_size=batch_size, on_batch=done.append)
    assert sum(done) == 4
    assert [type(one) for one in found] == [Shares, Shares, Failed, Shares]
    assert found[2].name == str(files / name)
    assert found[2].error
    assert found[3].values == shares_of(predictor, 2)


def test_outputs_that_are_not_finite_are_said_of_their_picture_alone():
    def divided(picture):
        return pil_to_tensor(picture) / 255 / (0 if picture.getpixel((0, 0)) == 0 else 1)

    pictures = [Image.new("L", (4, 4), shade) for shade in (9, 0, 10)]
    found = PicturePredictor(Sizes(), divided, interpret, 1)(pictures)
    assert [one.error is None for one in found] == [True, False, True]
    assert "not finite" in found[1].line()


@pytest.mark.parametrize("readable", [[], ["a.png"]], ids=["alone", "with another"])
def test_unreadable_file_may_come_twice(predictor, files, readable):
    (files / "bad.png").write_text("no picture")
    found = predictor([files / name for name in ("bad.png", *readable, "bad.png")])
    assert [one.error is None for one in found] == [False, *[True for _ in readable], False]


def test_unreadable_file_is_not_taken_for_a_picture_at_a_place(predictor, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "1").write_text("no picture")
    found = predictor(["1", pixels(0)])
    assert [(one.name, one.error is None) for one in found] == [("1", False), ("1", True)]


def test_unreadable_picture_has_a_line_and_stays_as_it_is():
    unread, picture = Failed("x.png", "it is text"), Image.new("L", (4, 4))
    assert unread.line() == "x.png: it is text"
    assert unread.to_json() == {"name": "x.png", "error": "it is text"}
    assert unread.draw(picture) is picture


@pytest.mark.parametrize("form", ["path", "array"])
def test_error_of_a_transform_is_raised(files, form):
    def mistaken(picture):
        raise OSError("a mistake in a transform")  # an error that reading has too

    predictor = PicturePredictor(make_network(), mistaken, interpret, 1)
    with pytest.raises(OSError, match="a mistake in a transform"):
        predictor(files / "a.png" if form == "path" else pixels(0))


def test_missing_path_is_named(predictor, files):
    with pytest.raises(ValueError, match=r"there is no picture or folder .*nowhere\.png"):
        predictor([files / "a.png", files / "nowhere.png"])


def test_folder_without_pictures_is_named(predictor, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"there are no pictures in .*empty"):
        predictor(tmp_path / "empty")


@pytest.mark.parametrize(
    "picture", [255.0 * np.ones((4, 4), np.float32), -0.5 * torch.ones(1, 4, 4)], ids=["255", "-0.5"]
)
def test_floats_outside_their_range_are_refused(predictor, picture):
    with pytest.raises(ValueError, match="from 0 to 1"):
        predictor(picture)


@pytest.mark.parametrize("batch_size", [0, -1])
def test_batch_size_is_checked(predictor, batch_size):
    with pytest.raises(ValueError, match=f"batch_size must be at least 1; got {batch_size}"):
        predictor(pixels(0), batch_size=batch_size)


def test_no_pictures_give_no_predictions(predictor):
    assert predictor([]) == []


def test_network_is_put_into_evaluation_mode():
    torch.manual_seed(0)
    predictor = make_predictor(network=timm.create_model("test_resnet", num_classes=4, in_chans=1).train())
    first, second = predictor(pixels(0)), predictor([pixels(0), pixels(1)])
    assert first[0].values == pytest.approx(second[0].values, abs=1e-5)


def test_picture_is_left_as_it_was(predictor):
    picture = Image.fromarray(COLOUR)
    predictor(picture)
    assert (picture.mode, picture.tobytes()) == ("RGB", COLOUR.tobytes())


def test_caption_stands_below_the_picture_and_fits():
    picture = Image.new("L", (20, 10), 100)
    one, two = with_caption(picture, "a rather long line"), with_caption(picture, "a rather long line\nand another")
    assert one.width > 20
    assert two.height > one.height > 10
    left = (one.width - 20) // 2
    assert one.crop((left, 0, left + 20, 10)).tobytes() == picture.convert("RGB").tobytes()
    assert np.asarray(one)[10:].min() < 128  # something is written there


def test_bytes_batches_and_generators_are_pictures(predictor, tmp_path):
    grey = np.stack([pixels(seed) for seed in range(3)])  # (N, H, W)
    expected = [found.values for found in predictor(list(grey))]
    Image.fromarray(grey[1]).save(tmp_path / "one.png")
    assert predictor((tmp_path / "one.png").read_bytes())[0].values == pytest.approx(expected[1], abs=1e-6)
    assert [found.values for found in predictor(picture for picture in grey)] == expected
    assert [found.values for found in predictor(torch.from_numpy(grey)[:, None])] == expected  # (N, C, H, W)
    assert [found.values for found in predictor(grey[..., None])] == expected  # (N, H, W, C)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "expected a path, .*; got None"),
        (3, "expected a path, .*; got 3"),
        ([None], "expected a path, .*; got None"),
        ([np.zeros(5, np.uint8)], r"got one of the shape \(5,\) and type uint8"),
        ([torch.zeros(1, 1, 4, 4)], r"got one of the shape \(1, 1, 4, 4\) and type torch.float32"),
        (np.zeros((0, 4), np.uint8), r"a picture needs pixels; got one of the shape \(0, 4\)"),
        (np.zeros((4, 4), np.int32), r"got one of the shape \(4, 4\) and type int32"),
        (torch.zeros(2, 1, 1, 4, 4), r"got one of the shape \(2, 1, 1, 4, 4\) and type torch.float32"),
        (b"no picture", "cannot identify image file"),
    ],
)
def test_what_is_no_picture_is_said(predictor, given, said):
    with pytest.raises((ValueError, OSError), match=said):
        predictor(given)
