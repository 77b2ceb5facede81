"""A check finds each kind of thing that can be wrong with boxes, names it, and counts what is there."""

import json
import shutil

import numpy as np
import pytest
from box_files import CLASSES, DATA, SIZE, WRITERS, edit_coco, save_picture, write_coco, write_voc, write_yolo
from PIL import Image

from castling.tasks import data_forms
from castling.tasks.data_check import CheckOptions, check_data
from castling.tasks.detection.drawing import color_of, draw_boxes
from castling.tasks.pictures import read_picture


def checked(root, form="auto", **options):
    return check_data(root, form, data_forms(), CheckOptions(**options))


def kinds(report, split="train"):
    return {found.kind: found for found in report.findings if found.split == split}


@pytest.mark.parametrize("form", WRITERS)
def test_clean_data_is_counted_alike_in_every_format(form, tmp_path):
    report = checked(WRITERS[form](tmp_path))
    assert report.form == form
    assert report.num_errors == 0
    train, val = report.splits
    assert (train.name, train.num_pictures, val.name, val.num_pictures) == ("train", 3, "val", 2)
    assert {name: train.per_class[name] for name in CLASSES.values()} == {"cat": 1, "dog": 1, "bird": 1}
    assert {name: val.per_class[name] for name in CLASSES.values()} == {"cat": 1, "dog": 1, "bird": 1}
    assert train.facts["boxes"] == 3
    assert train.facts["pictures without boxes"] == 1
    assert train.picture_sizes == dict.fromkeys(("smallest", "median", "largest"), SIZE)
    assert json.loads(json.dumps(report.to_json()))["splits"][0]["num_pictures"] == 3
    # A picture without a file of text is how YOLO says that there is nothing in it.
    assert [found.first for found in report.findings] == ([["b.png"]] if form == "yolo" else [])


def test_boxes_are_small_medium_and_large_as_coco_counts_them(tmp_path):
    write_coco(tmp_path)
    Image.new("RGB", (300, 300)).save(tmp_path / "train2017" / "a.png")

    def enlarge(content):
        content["images"][0].update(width=300, height=300)
        sides = (31, 32, 95, 96, 200)
        template = content["annotations"][0]
        content["annotations"] = [{**template, "id": side, "bbox": [0, 0, side, side]} for side in sides]

    edit_coco(tmp_path, enlarge)
    facts = checked(tmp_path).splits[0].facts
    assert [facts[f"{size} boxes"] for size in ("small", "medium", "large")] == [1, 2, 2]


def first_box(**values):
    return lambda root: edit_coco(root, lambda content: content["annotations"][0].update(values))


def second_annotation_again(root):
    edit_coco(root, lambda content: content["annotations"].append({**content["annotations"][1], "id": 77}))


def spoil_picture(root):
    path = root / "train2017" / "a.png"
    path.write_bytes(path.read_bytes()[:200])


WRONG = {  # kind of finding -> how it is made, its level, and what must be named
    "boxes not finite": (first_box(bbox=[1, 2, float("nan"), 4]), "error", "annotation 1"),
    "boxes inverted": (first_box(bbox=[20, 20, -5, 5]), "error", "annotation 1"),
    "boxes empty": (first_box(bbox=[20, 20, 0, 5]), "error", "annotation 1"),
    "boxes outside": (first_box(bbox=[50, 3, 5, 5]), "error", "annotation 1"),
    "boxes partly outside": (first_box(bbox=[-5, -5, 10, 10]), "warning", "annotation 1"),
    "boxes of an unknown class": (first_box(category_id=5), "error", "5 of a.png"),
    "boxes there twice": (second_annotation_again, "warning", "annotation 77"),
    "broken annotations": (first_box(bbox="none"), "error", "annotation 1"),
    "annotations without a picture": (first_box(image_id=99), "error", "annotation 1 of picture 99"),
    "pictures that cannot be read": (spoil_picture, "error", "a.png"),
    "pictures that are listed and not there": (
        lambda root: (root / "train2017" / "b.png").unlink(),
        "error",
        "b.png",
    ),
    "pictures without annotation": (lambda root: save_picture(root / "train2017" / "z.png", 1), "warning", "z.png"),
    "pictures of another size than their annotation says": (
        lambda root: edit_coco(root, lambda content: content["images"][0].update(width=41)),
        "error",
        "a.png (is 40 x 30, said 41 x 30)",
    ),
    "pictures there twice": (
        lambda root: shutil.copy(root / "train2017" / "a.png", root / "train2017" / "b.png"),
        "warning",
        "b.png = a.png",
    ),
    "classes without a box": (
        lambda root: [
            edit_coco(root, lambda content: content["categories"].append({"id": 20, "name": "fox"}), split)
            for split in ("train", "val")
        ],
        "warning",
        "fox",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_each_kind_of_fault_is_found_and_named(kind, tmp_path):
    spoil, level, named = WRONG[kind]
    spoil(write_coco(tmp_path))
    report = checked(tmp_path)
    found = kinds(report)[kind]
    assert (found.level, found.total) == (level, 1)
    assert named in found.first[0]
    assert report.num_errors == (level == "error")


def test_pictures_in_two_splits_are_errors_whatever_their_file_format(tmp_path):
    write_coco(tmp_path)
    with Image.open(tmp_path / "train2017" / "c.png") as picture:
        picture.save(tmp_path / "val2017" / "d.png", compress_level=0)  # other bytes, the same pixels
    found = kinds(checked(tmp_path), "train and val")["pictures in both"]
    assert (found.level, found.first) == ("error", ["c.png = d.png"])


def test_classes_of_one_split_only_are_errors(tmp_path):
    edit_coco(write_coco(tmp_path), lambda content: content["categories"][1].update(name="wolf"), "val")
    found = kinds(checked(tmp_path), "train and val")["classes in one list only"]
    assert found.first == ["dog (7)", "wolf (7)"]


@pytest.mark.parametrize("annotated", ["stored", "upright"])
def test_boxes_of_a_turned_picture_are_for_the_size_that_they_were_written_for(tmp_path, annotated):
    write_coco(tmp_path)
    exif = Image.Exif()
    exif[0x0112] = 6
    path = tmp_path / "train2017" / "a.png"
    with Image.open(path) as picture:
        assert picture.width != picture.height
        size, sideways = picture.size, picture.transpose(Image.Transpose.ROTATE_90)
        (picture if annotated == "stored" else sideways).save(path, exif=exif)
    kinds_found = [found.kind.split(",")[0] for found in checked(tmp_path).findings]
    assert kinds_found == (["pictures annotated as they are stored"] if annotated == "stored" else [])
    assert read_picture(path, size).size == size


@pytest.mark.parametrize("form", ["voc", "yolo"])
def test_one_broken_file_of_many_does_not_end_the_check(form, tmp_path):
    WRITERS[form](tmp_path)
    broken = {"voc": "Annotations/a.xml", "yolo": "labels/train/a.txt"}[form]
    (tmp_path / broken).write_text("<annotation> 1 2")
    found = kinds(checked(tmp_path))["broken annotations"]
    assert broken.rpartition("/")[2] in found.first[0]


def test_a_folder_of_pictures_that_splits_share_lacks_no_annotation(tmp_path):
    write_coco(tmp_path)
    (tmp_path / "images").mkdir()
    for path in [*tmp_path.glob("*2017/*.png")]:
        path.rename(tmp_path / "images" / path.name)
    for folder in tmp_path.glob("*2017"):
        folder.rmdir()
    save_picture(tmp_path / "images" / "z.png", 1)
    (found,) = checked(tmp_path).findings
    assert (found.kind, found.first) == ("pictures without annotation", ["z.png"])


def test_a_test_split_is_checked_where_there_is_one(tmp_path):
    data = {**DATA, "test": {"f": [(1, 1, 9, 9, 3)]}}
    assert [split.name for split in checked(write_voc(tmp_path, data)).splits] == ["train", "val", "test"]


def test_settings_of_a_recipe_say_where_data_is(tmp_path):
    write_coco(tmp_path)
    (tmp_path / "train2017").rename(tmp_path / "elsewhere")
    assert "pictures that are listed and not there" in kinds(checked(tmp_path))
    assert checked(tmp_path, settings={"train_pictures": "elsewhere"}).num_errors == 0
    with pytest.raises(ValueError, match=r"unknown key 'data\.train_picture': did you mean 'train_pictures'"):
        checked(tmp_path, settings={"train_picture": "elsewhere"})


def test_samples_show_bad_pictures_and_good_ones(tmp_path):
    first_box(bbox=[50, 3, 5, 5])(write_coco(tmp_path))
    samples = checked(tmp_path, num_samples=2).samples
    assert [sample.title for sample in samples] == ["train: a.png", "train: b.png", "val: d.png", "val: e.png"]
    assert [sample.note for sample in samples] == ["boxes outside", "", "", ""]
    assert all(max(sample.picture.size) == 480 for sample in samples)
    assert checked(tmp_path).samples == []


def test_broken_pictures_and_boxes_that_are_not_finite_are_not_drawn(tmp_path):
    first_box(bbox=[float("nan"), 3, 5, 5])(write_coco(tmp_path))
    (tmp_path / "train2017" / "c.png").write_bytes(b"")
    titles = [sample.title for sample in checked(tmp_path, num_samples=9).samples]
    assert "train: a.png" in titles
    assert "train: c.png" not in titles


def test_boxes_are_drawn_where_they_are_in_the_colour_of_their_class():
    picture = Image.new("L", (200, 100))
    boxes = [(20, 40, 80, 90), (150, -10, 260, 50), (90, 90, 60, 60)]  # one over the border, one inverted
    drawn = np.asarray(draw_boxes(picture, boxes, ["", "", ""], [0, 1, 2]))
    assert tuple(drawn[60, 20]) == tuple(drawn[90, 50]) == color_of(0)
    assert tuple(drawn[50, 170]) == color_of(1)
    assert tuple(drawn[75, 90]) == color_of(2)
    assert drawn[65, 40].sum() == 0
    assert np.asarray(picture).sum() == 0  # a copy
    captioned = np.asarray(draw_boxes(picture, boxes[:1], ["cat"], [0]))
    assert captioned[25:40].sum() > drawn[25:40].sum()


def test_yolo_text_without_a_picture_is_found(tmp_path):
    (write_yolo(tmp_path) / "labels" / "train" / "z.txt").write_text("3 .5 .5 .1 .1\n")
    assert "z.txt" in kinds(checked(tmp_path))["annotations without a picture"].first[0]
