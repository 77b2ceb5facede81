import numpy as np
import pytest
import timm
import torch
from PIL import Image

from castling.tasks.classification.data import DataConfig, eval_transform
from castling.tasks.classification.predict import Predictor

LABELS = ["ape", "bee", "cat", "dog"]
DATA = DataConfig(image_size=32, channels=1, mean=(0.4,), std=(0.3,), crop_share=0.8)


def make_model(channels=1):
    torch.manual_seed(0)
    model = timm.create_model(
        "castling_deit_tiny_patch16_224",
        num_classes=len(LABELS),
        in_chans=channels,
        img_size=32,
        patch_size=4,
        embed_dim=32,
        depth=1,
        num_heads=2,
    )
    torch.nn.init.normal_(model.head.weight)  # so that pictures differ in more than the last digits
    return model


@pytest.fixture(scope="module")
def predictor():
    return Predictor(make_model(), DATA, LABELS)


def pixels(seed, size=(40, 50), channels=()):
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 5, *channels), np.uint8)
    return coarse.repeat(size[0] // 4, 0).repeat(size[1] // 5, 1)  # (H, W) or (H, W, C)


def values(prediction):
    return dict(zip(prediction.labels, prediction.probabilities, strict=True))


def expected(predictor, picture):
    image = eval_transform(predictor.data)(picture)
    with torch.no_grad():
        probabilities = predictor.model(image[None]).softmax(-1)[0].tolist()
    return dict(zip(LABELS, probabilities, strict=True))


@pytest.fixture
def files(tmp_path):
    """Pictures a.png, b.png and deep/c.png."""
    (tmp_path / "deep").mkdir()
    for seed, name in enumerate(("a.png", "b.png", "deep/c.png")):
        Image.fromarray(pixels(seed)).save(tmp_path / name)
    return tmp_path


def test_labels_come_with_their_probabilities_best_first(predictor):
    picture = Image.fromarray(pixels(0))
    [found] = predictor(picture)
    wanted = expected(predictor, picture)
    assert found.labels == sorted(LABELS, key=wanted.get, reverse=True)
    assert values(found) == pytest.approx(wanted, abs=1e-6)
    assert found.probabilities[0] - found.probabilities[-1] > 0.1
    assert (found.name, found.error) == ("0", None)


@pytest.mark.parametrize("convert", [str, lambda path: path], ids=["str", "Path"])
def test_path(predictor, files, convert):
    [found] = predictor(convert(files / "a.png"))
    assert found.name == str(files / "a.png")
    assert values(found) == pytest.approx(expected(predictor, Image.fromarray(pixels(0))), abs=1e-6)


def test_folder_stands_for_all_pictures_in_it(predictor, files):
    (files / "notes.txt").write_text("no picture")
    found = predictor(files)
    assert [one.name for one in found] == [str(files / name) for name in ("a.png", "b.png", "deep/c.png")]
    for seed, one in enumerate(found):
        assert values(one) == pytest.approx(expected(predictor, Image.fromarray(pixels(seed))), abs=1e-5)


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
    data = DataConfig(image_size=32, channels=channels, mean=(0.4,) * channels, std=(0.3,) * channels)
    predictor = Predictor(make_model(channels), data, LABELS)
    [found] = predictor(picture)
    wanted = expected(predictor, Image.fromarray(same).convert("L" if channels == 1 else "RGB"))
    assert values(found) == pytest.approx(wanted, abs=0.02)  # a float may lose one of 255 shades


def test_list_of_different_forms_keeps_its_order(predictor, files):
    found = predictor([pixels(5), files / "deep", Image.fromarray(pixels(6)), str(files / "b.png")])
    assert [one.name for one in found] == ["0", str(files / "deep/c.png"), "2", str(files / "b.png")]
    for one, seed in zip(found, (5, 2, 6, 1), strict=True):
        assert values(one) == pytest.approx(expected(predictor, Image.fromarray(pixels(seed))), abs=1e-5)


def test_batches_give_what_single_pictures_give(predictor):
    pictures, done = [pixels(seed) for seed in range(7)], []
    one_by_one = predictor(pictures, batch_size=1)
    batched = predictor(pictures, batch_size=3, on_batch=done.append)
    assert done == [3, 3, 1]
    assert [one.name for one in batched] == list("0123456")
    for single, other in zip(one_by_one, batched, strict=True):
        assert single.labels == other.labels
        assert single.probabilities == pytest.approx(other.probabilities, abs=1e-5)


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
    assert [len(one.labels) for one in found] == [4, 4, 0, 4]
    assert found[2].name == str(files / name)
    assert found[2].error
    assert found[2].probabilities == []
    assert values(found[3]) == pytest.approx(expected(predictor, Image.fromarray(pixels(2))), abs=1e-5)


def test_missing_path_is_named(predictor, files):
    with pytest.raises(ValueError, match=r"there is no picture or folder .*nowhere\.png"):
        predictor([files / "a.png", files / "nowhere.png"])


def test_folder_without_pictures_is_named(predictor, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"there are no pictures in .*empty"):
        predictor(tmp_path / "empty")


@pytest.mark.parametrize(
    "picture",
    [3, None, np.zeros(5, np.uint8), torch.zeros(1, 1, 4, 4), np.zeros((4, 4), np.int64)],
    ids=["number", "None", "one axis", "four axes", "64-bit"],
)
def test_other_kinds_of_input_are_refused(predictor, picture):
    with pytest.raises(ValueError, match="expected a path, a PIL image, an array"):
        predictor([picture])


@pytest.mark.parametrize(
    "picture", [255.0 * np.ones((4, 4), np.float32), -0.5 * torch.ones(1, 4, 4)], ids=["255", "-0.5"]
)
def test_floats_outside_their_range_are_refused(predictor, picture):
    with pytest.raises(ValueError, match="from 0 to 1"):
        predictor(picture)


@pytest.mark.parametrize(("top", "count"), [(1, 1), (3, 3), (4, 4), (99, 4)])
def test_top_is_how_many_classes_are_named(predictor, top, count):
    [found] = predictor(pixels(0), top=top)
    [everything] = predictor(pixels(0), top=4)
    assert found.labels == everything.labels[:count]
    assert found.probabilities == everything.probabilities[:count]


def test_no_pictures_give_no_predictions(predictor):
    assert predictor([]) == []


def test_model_is_put_into_evaluation_mode():
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", num_classes=4, in_chans=1).train()
    predictor = Predictor(model, DATA, LABELS)
    first, second = predictor(pixels(0)), predictor([pixels(0), pixels(1)])
    assert first[0].probabilities == pytest.approx(second[0].probabilities, abs=1e-5)


def test_picture_is_left_as_it_was(predictor):
    picture = Image.fromarray(COLOUR)
    predictor(picture)
    assert (picture.mode, picture.tobytes()) == ("RGB", COLOUR.tobytes())
