"""Annotations that are broken: a message that names file and place, or boxes that are left out and counted."""

import logging

import pytest
from box_files import DATA, WRITERS, edit_coco, write_coco, write_voc, write_yolo

from castling.tasks.detection.data import DetectionData, open_split


def replaced(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def in_coco(change):
    return "coco", lambda root: edit_coco(root, change)


def first_annotation(**values):
    return in_coco(lambda content: content["annotations"][0].update(values))


def coco_text(text):
    return "coco", lambda root: (root / "annotations" / "instances_train2017.json").write_bytes(text)


def in_voc(old, new):
    return "voc", lambda root: replaced(root / "Annotations" / "a.xml", old, new)


def in_yolo(text):
    return "yolo", lambda root: (root / "labels" / "train" / "a.txt").write_bytes(text)


def yolo_yaml(text):
    return "yolo", lambda root: (root / "data.yaml").write_bytes(text)


def remove_first(content):
    del content["annotations"][0]["bbox"]


REFUSED = {  # what is wrong -> how it is made, and what the message must say
    "json cut off": (coco_text(b'{"images": [\n{"id": 1,'), r"train2017\.json is no json: .*line 2, column \d+; mend"),
    "json that is no text": (coco_text(b"\x89PNG\r\n\xff\xfe"), r"train2017\.json is no json: .*export the file again"),
    "json of another kind": (coco_text(b'{"pictures": []}'), r"no COCO file: it lacks .*'images'.*it has 'pictures'"),
    "json that is a list": (coco_text(b"[1, 2]"), r"no COCO file: it lacks .*it has list"),
    "annotation without box": (in_coco(remove_first), r"entry 0 of 'annotations' lacks 'bbox'"),
    "annotation that is no object": (
        in_coco(lambda content: content["annotations"].insert(0, 5)),
        r"entry 0 of 'annotations' lacks .*: 5",
    ),
    "box of three numbers": (first_annotation(bbox=[1, 2, 3]), r"annotation 1: a box is four numbers.*\[1, 2, 3\]"),
    "box of words": (first_annotation(bbox=["1", "2", "3", "4"]), "annotation 1: a box is four numbers"),
    "unknown category id": (
        first_annotation(category_id=4),
        r"a\.png .*train2017\.json, annotation 1\): unknown class 4; legal: 3, 7, 11",
    ),
    "category id that is text": (first_annotation(category_id="7"), "category_id must be a whole number; got '7'"),
    "category there twice": (
        in_coco(lambda content: content["categories"].append({"id": 3, "name": "fox"})),
        "category id 3 is there twice",
    ),
    "picture there twice": (
        in_coco(lambda content: content["images"].append(content["images"][0])),
        r"picture id 5 is there twice, as 'a\.png'",
    ),
    "picture without name": (
        in_coco(lambda content: content["images"][0].pop("file_name")),
        "entry 0 of 'images' lacks 'file_name'",
    ),
    "no pictures": (in_coco(lambda content: content.update(images=[], annotations=[])), "no pictures"),
    "xml cut off": (in_voc("</annotation>", ""), r"a\.xml is no xml: .*line \d+, column \d+; mend"),
    "xml without a corner": (in_voc("<xmin>3</xmin>", ""), r"a\.xml, object 1: a box is four numbers; got xmin None"),
    "xml with a word for a number": (
        in_voc("<xmin>3<", "<xmin>left<"),
        "object 1: a box is four numbers; got xmin 'left'",
    ),
    "xml without a name": (in_voc("<name>dog</name>", ""), r"a\.xml, object 1: it has no name"),
    "xml that is listed and missing": (
        ("voc", lambda root: (root / "Annotations" / "a.xml").unlink()),
        r"a\.xml cannot be read: it is listed and not there; add the file",
    ),
    "line of four numbers": (
        in_yolo(b"7 .5 .5 .2 .2\n3 .5 .5 .2\n"),
        r"a\.txt, line 2: a line is .*got '3 \.5 \.5 \.2'",
    ),
    "line of words": (in_yolo(b"dog .5 .5 .2 .2\n"), r"a\.txt, line 1: .*got 'dog"),
    "class that is no whole number": (in_yolo(b"1.5 .5 .5 .2 .2\n"), r"a\.txt, line 1: a line is a whole number"),
    "unknown class number": (in_yolo(b"\n5 .5 .5 .2 .2\n"), r"a\.txt, line 2\): unknown class 5; legal: 3, 7, 11"),
    "text that is no text": (in_yolo(b"\xff\xfe\x00"), r"a\.txt is no text"),
    "yaml that is none": (yolo_yaml(b"names: [a,"), r"data\.yaml is no YAML"),
    "yaml without names": (yolo_yaml(b"train: images/train"), r"data\.yaml: names must be a list.*got None"),
    "yaml with a list of folders": (
        yolo_yaml(b"train: [a, b]\nnames: [x]"),
        r"train must be one folder .*\['a', 'b'\]",
    ),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_what_must_not_be_trained_on_silently_is_refused_by_name(wrong, tmp_path):
    (form, spoil), message = REFUSED[wrong]
    spoil(WRITERS[form](tmp_path))
    with pytest.raises(ValueError, match=message) as caught:
        open_split(DetectionData(root=str(tmp_path)), "train")
    assert type(caught.value) is ValueError  # in our own words, not a parser's


DROPPED = {  # what is wrong -> how it is made, and the reason
    "not a number": (first_annotation(bbox=[float("nan"), 2, 3, 4]), "not finite"),
    "infinite": (first_annotation(bbox=[1, 2, float("inf"), 4]), "not finite"),
    "inverted": (first_annotation(bbox=[20, 20, -5, 5]), "inverted"),
    "without width": (first_annotation(bbox=[20, 20, 0, 5]), "empty"),
    "thinner than rounding": (first_annotation(bbox=[20, 20, 1e-6, 5]), "empty"),
    "right of the picture": (first_annotation(bbox=[40, 3, 5, 5]), "outside"),
    "above the picture": (first_annotation(bbox=[3, -9, 5, 5]), "outside"),
    "of a picture that is not listed": (first_annotation(image_id=99), "without a picture"),
    "inverted in xml": (in_voc("<xmin>3<", "<xmin>30<"), "inverted"),
    "not a number in xml": (in_voc("<xmin>3<", "<xmin>nan<"), "not finite"),
    "outside in text": (in_yolo(b"7 3.5 .5 .2 .2\n3 .5 .5 .2 .2\n"), "outside"),
    "inverted in text": (in_yolo(b"7 .5 .5 -.2 .2\n3 .5 .5 .2 .2\n"), "inverted"),
    "not a number in text": (in_yolo(b"7 nan .5 .2 .2\n3 .5 .5 .2 .2\n"), "not finite"),
    "text without a picture": (
        ("yolo", lambda root: (root / "labels" / "train" / "z.txt").write_text("7 .5 .5 .2 .2\n")),
        "without a picture",
    ),
}


@pytest.mark.parametrize("wrong", DROPPED)
def test_boxes_that_are_none_are_left_out_counted_and_named(wrong, tmp_path, caplog):
    (form, spoil), reason = DROPPED[wrong]
    spoil(WRITERS[form](tmp_path))
    with caplog.at_level(logging.WARNING):
        annotations = open_split(DetectionData(root=str(tmp_path)), "train")
    assert {name: those.total for name, those in annotations.dropped.items()} == {reason: 1}
    (place,) = annotations.dropped[reason].first
    assert place in caplog.text
    assert any(word in place for word in ("a.png", "picture 99", "z.txt"))
    assert f"1 annotations left out, {reason}" in caplog.text
    kept = sum(len(boxes) for boxes in DATA["train"].values()) - (wrong != "text without a picture")
    assert len(annotations.boxes) == kept


def test_a_split_of_which_nothing_is_left_is_refused(tmp_path):
    write_yolo(tmp_path)
    for file in (tmp_path / "labels" / "train").glob("*.txt"):
        file.write_text("7 120 80 30 20\n")  # pixels instead of shares
    with pytest.raises(ValueError, match="none of 2 boxes can be used: 2 outside"):
        open_split(DetectionData(root=str(tmp_path)), "train")


def test_pictures_without_any_box_can_be_read(tmp_path):
    edit_coco(write_coco(tmp_path), lambda content: content["annotations"].clear())
    annotations = open_split(DetectionData(root=str(tmp_path)), "train")
    assert (len(annotations), annotations.objects(2).boxes.shape) == (3, (0, 4))


def test_a_wrong_folder_of_pictures_is_told_at_once(tmp_path):
    write_coco(tmp_path)
    (tmp_path / "train2017").rename(tmp_path / "elsewhere")
    with pytest.raises(
        FileNotFoundError, match=r"none of the pictures of train is there, first .*a\.png; .*train_pictures"
    ):
        open_split(DetectionData(root=str(tmp_path)), "train")


def test_several_broken_files_are_counted(tmp_path):
    write_voc(tmp_path)
    for name in ("a", "b", "c"):
        (tmp_path / "Annotations" / f"{name}.xml").write_text("<annotation>")
    with pytest.raises(ValueError, match=r"a\.xml is no xml.*\(and 2 more\)"):
        open_split(DetectionData(root=str(tmp_path)), "train")
