"""Each format is read to the same annotations, from its usual place or from where the configuration says."""

import json
import logging
import pickle

import numpy as np
import pytest
import torch
from box_files import (
    CLASSES,
    DATA,
    SIZE,
    WRITERS,
    coco_content,
    edit_coco,
    save_picture,
    write_coco,
    write_voc,
    write_yolo,
)
from PIL import Image

from castling.settings import from_mapping
from castling.tasks.batches import EpochBatches
from castling.tasks.detection.annotations import degenerate
from castling.tasks.detection.data import DetectionData, check_classes, open_split, recognise
from castling.tasks.detection.transforms import EvaluationTransform, collate
from castling.tasks.pictures import PictureLoader, Pictures


def opened(root, split="train", **options):
    return open_split(DetectionData(root=str(root), **options), split)


def boxes_by_picture(annotations):
    """Name of the picture -> boxes with names of classes."""
    found = {}
    for index in range(len(annotations)):
        boxes, labels, crowd, _ = annotations.objects(index)
        assert (boxes.dtype, labels.dtype, crowd.dtype) == (torch.float32, torch.int64, torch.bool)
        names = [annotations.labels[label] for label in labels]
        rounded = [tuple(round(number, 3) for number in box) for box in boxes.tolist()]
        found[annotations.name(index)] = list(zip(rounded, names, strict=True))
    return found


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("form", WRITERS)
def test_every_format_is_recognised_and_gives_the_same_annotations(form, split, tmp_path):
    annotations = opened(WRITERS[form](tmp_path), split)
    wanted = {
        f"{name}.png": [(tuple(box[:4]), CLASSES[box[4]]) for box in boxes] for name, boxes in DATA[split].items()
    }
    assert recognise(tmp_path) == form
    assert boxes_by_picture(annotations) == wanted
    assert sorted(annotations.labels) == sorted(CLASSES.values())
    assert annotations.dropped == {}
    assert annotations.sizes.tolist() == [list(SIZE)] * len(wanted)
    picture, objects = annotations.read(0)
    assert picture.size == SIZE
    assert torch.equal(objects.boxes, annotations.objects(0).boxes)


@pytest.mark.parametrize(("form", "ids"), [("coco", [3, 7, 11]), ("voc", [0, 1, 2]), ("yolo", [3, 7, 11])])
def test_classes_keep_the_ids_of_the_files_in_order(form, ids, tmp_path):
    assert opened(WRITERS[form](tmp_path)).category_ids == ids


def test_coco_keeps_the_ids_of_the_pictures_and_id_0(tmp_path):
    write_coco(tmp_path)
    assert opened(tmp_path).ids.tolist() == [5, 15, 25]

    def from_zero(content):
        for entry in (*content["images"], *content["categories"]):
            entry["id"] -= 5 if "file_name" in entry else 3
        for entry in content["annotations"]:
            entry["image_id"] -= 5
            entry["category_id"] -= 3

    before = boxes_by_picture(opened(tmp_path))
    edit_coco(tmp_path, from_zero)
    annotations = opened(tmp_path)
    assert (annotations.ids.tolist(), annotations.category_ids) == ([0, 10, 20], [0, 4, 8])
    assert boxes_by_picture(annotations) == before


def test_annotations_in_any_order_come_to_their_pictures(tmp_path):
    before = boxes_by_picture(opened(write_coco(tmp_path)))
    edit_coco(tmp_path, lambda content: content["annotations"].reverse())
    after = boxes_by_picture(opened(tmp_path))
    assert {name: sorted(boxes) for name, boxes in after.items()} == {
        name: sorted(boxes) for name, boxes in before.items()
    }


def test_coco_with_ids_that_are_text(tmp_path):
    def as_text(content):
        for entry in content["images"]:
            entry["id"] = str(entry["id"])

    before = boxes_by_picture(opened(write_coco(tmp_path)))
    edit_coco(tmp_path, as_text)
    assert boxes_by_picture(opened(tmp_path)) == before


def test_crowd_is_kept_apart(tmp_path):
    edit_coco(write_coco(tmp_path), lambda content: content["annotations"][0].update(iscrowd=1))
    assert opened(tmp_path).objects(0).crowd.tolist() == [True, False]


def test_difficult_objects_are_crowd(tmp_path):
    file = write_voc(tmp_path) / "Annotations" / "a.xml"
    file.write_text(file.read_text().replace("<difficult>0", "<difficult>1", 1))
    assert opened(tmp_path).objects(0).crowd.tolist() == [True, False]


def test_any_json_and_any_folder_by_option(tmp_path):
    save_picture(tmp_path / "photos" / "a.png", 0)
    (tmp_path / "mine.json").write_text(json.dumps(coco_content({"a": DATA["train"]["a"]})))
    annotations = opened(tmp_path, format="coco", train_annotations="mine.json", train_pictures="photos")
    assert len(annotations) == 1
    assert annotations.read(0)[0].size == SIZE
    with pytest.raises(FileNotFoundError, match=r"val_pictures: no .*nowhere"):
        opened(tmp_path, "val", format="coco", val_annotations="mine.json", val_pictures="nowhere")


def test_one_json_of_another_name_is_found(tmp_path):
    write_coco(tmp_path)
    (tmp_path / "annotations" / "instances_train2017.json").rename(tmp_path / "annotations" / "custom_train.json")
    assert len(opened(tmp_path)) == 3
    (tmp_path / "annotations" / "other_train.json").write_text("{}")
    with pytest.raises(
        ValueError, match=r"several .* train: .*custom_train.json, .*other_train.json; .*train_annotations"
    ):
        opened(tmp_path)


def test_coco_files_beside_their_pictures(tmp_path):
    write_coco(tmp_path)
    for split, folder in (("train", "train"), ("val", "valid")):
        (tmp_path / f"{split}2017").rename(tmp_path / folder)
        (tmp_path / "annotations" / f"instances_{split}2017.json").rename(tmp_path / folder / "_annotations.coco.json")
    assert (len(opened(tmp_path)), len(opened(tmp_path, "val"))) == (3, 2)


@pytest.mark.parametrize(
    ("lists", "train", "val"),
    [
        (["train", "val", "trainval", "test"], "train", "val"),
        (["trainval", "test"], "trainval", "test"),
        (["trainval", "val", "test"], "trainval", "test"),
        (["train", "test"], "train", "test"),
    ],
)
def test_voc_lists_stand_in_for_those_that_are_missing(lists, train, val, tmp_path):
    data = {name: {f"{name}{number}": [(1, 1, 9, 9, 3)] for number in range(2)} for name in lists}
    write_voc(tmp_path, data)
    assert [opened(tmp_path, split).name(0) for split in ("train", "val")] == [f"{train}0.png", f"{val}0.png"]


def test_voc_without_lists_is_split_by_names(tmp_path):
    names = [f"p{number}" for number in range(60)]
    write_voc(tmp_path, {"train": {name: [(1, 1, 9, 9, 3)] for name in names}}, lists=False)
    train, val = opened(tmp_path), opened(tmp_path, "val")
    assert 1 <= len(val) <= 15
    found = [annotations.name(index) for annotations in (train, val) for index in range(len(annotations))]
    assert sorted(found) == sorted(f"{name}.png" for name in names)


def test_voc_classes_are_those_of_training_or_those_given(tmp_path):
    write_voc(tmp_path)
    assert opened(tmp_path, "val").labels == ["bird", "cat", "dog"]
    assert opened(tmp_path, labels=("dog", "cat", "bird")).labels == ["dog", "cat", "bird"]
    with pytest.raises(ValueError, match=r"a\.xml, object 2\): unknown class 'cat'; legal: 'dog', 'bird'"):
        opened(tmp_path, labels=("dog", "bird"))


def test_yolo_in_folders_by_split(tmp_path):
    write_yolo(tmp_path)
    for split in ("train", "val"):
        (tmp_path / split).mkdir()
        (tmp_path / "images" / split).rename(tmp_path / split / "images")
        (tmp_path / "labels" / split).rename(tmp_path / split / "labels")
    (tmp_path / "data.yaml").write_text(
        "train: ../train/images\nval: ../val/images\nnames: {3: cat, 7: dog, 11: bird}\n"
    )
    assert len(opened(tmp_path).boxes) == 3


def test_yolo_names_may_be_a_list(tmp_path):
    write_yolo(tmp_path, {"train": {"a": [(1, 1, 9, 9, 1)]}})
    (tmp_path / "data.yaml").write_text("names: [cat, dog]\n")
    annotations = opened(tmp_path)
    assert (annotations.labels, annotations.category_ids, annotations.classes.tolist()) == (["cat", "dog"], [0, 1], [1])


def test_nothing_that_fits_says_what_was_looked_for(tmp_path):
    save_picture(tmp_path / "photos" / "a.png", 0)
    with pytest.raises(
        ValueError, match=r"which has photos; looked for coco: .*instances_train.*voc: .*yolo: data.yaml"
    ):
        opened(tmp_path)


def test_a_split_that_is_missing_is_named(tmp_path):
    write_coco(tmp_path, {"train": DATA["train"]})
    with pytest.raises(FileNotFoundError, match=r"no val in .*: looked for annotations/instances_val"):
        opened(tmp_path, "val")


@pytest.mark.parametrize(
    "wrong", [{"format": "cocoa"}, {"image_size": 100}, {"sizes": (320, 333)}, {"interpolation": "x"}]
)
def test_configuration_is_checked(wrong):
    with pytest.raises(ValueError, match=str(next(iter(wrong.values())) if "sizes" not in wrong else 333)):
        DetectionData(**wrong)


def test_configuration_comes_from_a_recipe():
    data = from_mapping(DetectionData, {"root": "x", "sizes": [256, 320], "labels": ["a"], "mean": [0, 0, 0]})
    assert (data.sizes, data.labels, data.mean) == ((256, 320), ("a",), (0, 0, 0))
    assert data.example().shape == (1, 3, 320, 320)
    assert data.preprocessing()["interpolation"] == "bilinear"


def test_classes_of_another_split_must_be_those_of_training(tmp_path):
    write_coco(tmp_path)
    train = opened(tmp_path)
    check_classes(opened(tmp_path, "val"), train.labels, train.category_ids)
    edit_coco(tmp_path, lambda content: content["categories"][1].update(name="wolf"), "val")
    with pytest.raises(ValueError, match=r"classes are not the 3 of training.*'wolf' with id 7"):
        check_classes(opened(tmp_path, "val"), train.labels, train.category_ids)


def test_a_picture_of_another_size_than_its_annotation_is_not_read(tmp_path):
    Image.new("RGB", (30, 40)).save(write_coco(tmp_path) / "train2017" / "a.png")
    with pytest.raises(ValueError, match="30 x 40 pixels, its annotation says 40 x 30"):
        opened(tmp_path).read(0)


def test_sizes_that_no_file_says_are_not_compared(tmp_path):
    edit_coco(write_coco(tmp_path), lambda content: [image.pop("width") for image in content["images"]])
    assert opened(tmp_path).read(0)[0].size == SIZE


def test_degenerate_boxes_have_one_reason_each():
    nan, inf = float("nan"), float("inf")
    boxes = [(0, 0, 9, 9), (nan, 0, 9, 9), (0, 0, inf, 9), (9, 0, 2, 9), (5, 5, 5, 5), (-9, 0, 0, 9), (40, 0, 50, 9)]
    found = degenerate(np.array(boxes, float), np.tile([40.0, 30.0], (7, 1)))
    places = {reason: np.flatnonzero(mask).tolist() for reason, mask in found.items()}
    assert places == {"not finite": [1, 2], "inverted": [3], "empty": [4], "outside": [5, 6]}


def test_boxes_are_cut_at_the_border_and_counted_beyond_a_pixel(tmp_path, caplog):
    def move(content):
        content["annotations"][0]["bbox"] = [-5, -5, 10, 10]
        content["annotations"][1]["bbox"] = [20, 10, 20.5, 20.5]

    edit_coco(write_coco(tmp_path), move)
    with caplog.at_level(logging.WARNING):
        annotations = opened(tmp_path)
    assert annotations.objects(0).boxes.tolist() == [[0, 0, 5, 5], [20, 10, 40, 30]]
    assert annotations.objects(0).written[:, :4].tolist() == [[-5, -5, 5, 5], [20, 10, 40.5, 30.5]]
    assert annotations.dropped["cut"].total == 1
    assert "1 annotations cut at the border of the picture, first a.png" in caplog.text


def test_annotations_go_to_loader_workers_and_make_batches(tmp_path):
    annotations = pickle.loads(pickle.dumps(opened(write_coco(tmp_path))))
    pictures = Pictures(annotations, EvaluationTransform(DetectionData(image_size=32)))
    (batch,) = PictureLoader(pictures, EpochBatches(3, 3), collate=collate)
    assert batch["image"].shape == (3, 3, 32, 32)
    assert batch["labels"].tolist() == [[1, 0], [-1, -1], [2, -1]]
    assert batch["index"].tolist() == [0, 1, 2]
