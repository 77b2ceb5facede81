"""A check finds each kind of thing that can be wrong with masks, names it, and counts what is there."""

import json
import shutil

import numpy as np
import pytest
from mask_pictures import CLASSES, write_masks
from PIL import Image

from castling.report.data_page import class_rows, render_data_page
from castling.tasks.data_check import CheckOptions, check_data
from castling.tasks.segmentation.check import FORMS

SIZE = (40, 30)


def checked(root, form="auto", **options):
    return check_data(root, form, FORMS, CheckOptions(**options))


def kinds(report, split="train"):
    return {found.kind: found for found in report.findings if found.split == split}


@pytest.fixture
def root(tmp_path):
    return write_masks(tmp_path / "data", num_train=6, num_val=4, size=SIZE)


def masks_of(root, split):
    return [np.asarray(Image.open(path)) for path in sorted((root / "annotations" / split).iterdir())]


@pytest.mark.parametrize("workers", [0, 2])
def test_clean_data_is_counted(root, workers, monkeypatch):
    monkeypatch.setattr("castling.tasks.picture_check.FEW", 1)
    report = checked(root, workers=workers)
    assert (report.form, report.unit, report.findings) == ("folders", "pixels", [])
    for split, count in zip(report.splits, (6, 4), strict=True):
        masks = np.stack(masks_of(root, split.name))
        assert split.num_pictures == count
        assert split.per_class == {name: int((masks == place).sum()) for place, name in enumerate(CLASSES)}
        ignored = int((masks == 255).sum())
        assert split.facts == {"pixels": masks.size - ignored, "ignored pixels": ignored, "pixels of no class": 0}
        assert split.picture_sizes == dict.fromkeys(("smallest", "median", "largest"), SIZE)
    assert json.loads(json.dumps(report.to_json()))["splits"][0]["num_pictures"] == 6


def test_people_read_shares(root):
    report = checked(root)
    shares = [float(row[1].removesuffix(" %")) for row in class_rows(report)]
    assert sum(shares) == pytest.approx(100, abs=0.5)
    assert "Pixels per class" in render_data_page(report)


def mask(root, number=0, split="train"):
    return root / "annotations" / split / f"{number:03d}.png"


def spoil_value(root):
    values = np.array(Image.open(mask(root)))
    values[:2] = 9
    Image.fromarray(values).save(mask(root))


WRONG = {  # kind of finding -> how it is made, its level, and what must be named
    "pictures without a mask": (lambda root: mask(root).unlink(), "error", "images/train/000.png"),
    "masks without a picture": (
        lambda root: (root / "images" / "train" / "000.png").unlink(),
        "error",
        "annotations/train/000.png",
    ),
    "masks that cannot be read": (lambda root: mask(root).write_bytes(b"x"), "error", "annotations/train/000.png ("),
    "masks with values that are no class": (
        spoil_value,
        "error",
        "annotations/train/000.png (unknown value 9 (80 pixels))",
    ),
    "masks of another size than their picture": (
        lambda root: Image.new("L", (41, 30)).save(mask(root)),
        "error",
        "annotations/train/000.png (is 41 x 30, its picture 40 x 30)",
    ),
    "masks that are ignored throughout": (
        lambda root: Image.new("L", SIZE, 255).save(mask(root)),
        "warning",
        "annotations/train/000.png",
    ),
    "pictures that cannot be read": (
        lambda root: (root / "images" / "train" / "000.png").write_bytes(b""),
        "error",
        "images/train/000.png",
    ),
    "pictures there twice": (
        lambda root: [
            shutil.copy(root / kind / "train" / "000.png", root / kind / "train" / "001.png")
            for kind in ("images", "annotations")
        ],
        "warning",
        "images/train/001.png = images/train/000.png",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_each_kind_of_fault_is_found_and_named(kind, root):
    spoil, level, named = WRONG[kind]
    spoil(root)
    report = checked(root)
    found = kinds(report)[kind]
    assert (found.level, found.total) == (level, 1)
    assert named in found.first[0]
    assert report.num_errors == (level == "error")


def test_pictures_in_two_splits_are_errors(root):
    shutil.copy(root / "images" / "train" / "001.png", root / "images" / "val" / "002.png")
    found = kinds(checked(root), "train and val")["pictures in both"]
    assert (found.level, found.first) == ("error", ["images/train/001.png = images/val/002.png"])


def test_classes_without_a_pixel_are_warned_of_in_each_split(root):
    (root / "classes.txt").write_text("\n".join((*CLASSES, "ring")))
    report = checked(root)
    for split in ("train", "val"):
        found = kinds(report, split)["classes without a pixel"]
        assert (found.level, found.first) == ("warning", ["ring"])


def test_unknown_pixels_are_counted_apart(root):
    spoil_value(root)
    assert checked(root).splits[0].facts["pixels of no class"] == 80


def test_settings_of_a_recipe_say_what_values_mean(root):
    (root / "classes.txt").unlink()
    with pytest.raises(ValueError, match="no list of classes for"):
        checked(root)
    assert checked(root, settings={"labels": list(CLASSES)}).num_errors == 0
    report = checked(root, settings={"labels": ["ground", "square"], "ignore": [2]})
    assert report.num_errors == 0
    assert list(report.splits[0].per_class) == ["ground", "square"]
    with pytest.raises(ValueError, match=r"unknown key 'data\.label': did you mean 'labels'"):
        checked(root, settings={"label": list(CLASSES)})


def test_a_test_split_is_checked_once(root):
    for kind in ("images", "annotations"):
        (root / kind / "val").rename(root / kind / "test")
    assert [split.name for split in checked(root).splits] == ["train", "val"]  # it stands in for val
    shutil.copytree(root / "images" / "train", root / "images" / "val")
    shutil.copytree(root / "annotations" / "train", root / "annotations" / "val")
    assert [split.name for split in checked(root).splits] == ["train", "val", "test"]


def test_samples_show_bad_masks_and_good_ones(root):
    spoil_value(root)
    mask(root, 3).write_bytes(b"x")
    samples = checked(root, num_samples=3).samples
    assert [sample.title.split(":")[0] for sample in samples] == ["train"] * 3 + ["val"] * 3
    assert samples[0].title == "train: images/train/000.png"
    assert samples[0].note == "unknown value 9 (80 pixels)"
    assert all(sample.note == "" for sample in samples[1:])
    assert all(sample.picture.width == 480 for sample in samples)
    assert not any("003" in sample.title for sample in checked(root, num_samples=9).samples if "train" in sample.title)
    assert checked(root).samples == []


def test_a_folder_without_masks_names_what_was_looked_for(tmp_path):
    (tmp_path / "photos").mkdir()
    with pytest.raises(
        ValueError, match=r"which has photos; looked for ade20k: .*; cityscapes: .*; folders: images/train"
    ):
        checked(tmp_path)
    with pytest.raises(ValueError, match="no split in"):
        checked(tmp_path, "folders", settings={"labels": ["a"]})
