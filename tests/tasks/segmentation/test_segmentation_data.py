"""Every layout is recognised and read alike; what is missing or wrong is named before training starts."""

import pickle
import shutil

import numpy as np
import pytest
from mask_pictures import CLASSES, draw_scene, write_masks
from PIL import Image

from castling.settings import from_mapping, to_mapping
from castling.tasks.batches import EpochBatches
from castling.tasks.pictures import PictureLoader, Pictures, WrongAnnotation
from castling.tasks.segmentation.data import SegmentationData, find_format, read_classes
from castling.tasks.segmentation.layouts import CITY_CLASSES, recognise
from castling.tasks.segmentation.sources import check_classes, open_split
from castling.tasks.segmentation.transforms import EvaluationTransform, MaskVariationConfig, TrainingTransform, collate

SIZE = (40, 30)


def scene(seed):
    return draw_scene(np.random.default_rng(41 + seed), *SIZE)  # of these, all have squares, most have discs


def save(image, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


def write_ade(root, names=True):
    for split, start in (("training", 0), ("validation", 2)):
        for number in range(2):
            picture, mask = scene(start + number)
            stem = f"ADE_{split[:5]}_{number:08d}"
            save(picture, root / "images" / split / f"{stem}.jpg")
            values = np.asarray(mask).astype(int) + 1
            values[values == 256] = 0  # zero is ignored, classes begin with one
            save(Image.fromarray(values.astype(np.uint8)), root / "annotations" / split / f"{stem}.png")
    if names:
        lines = ["Idx\tRatio\tTrain\tVal\tStuff\tName"]
        lines += [f"{number}\t0.1\t2\t2\t1\t{name}, other" for number, name in enumerate(CLASSES, start=1)]
        (root / "objectInfo150.txt").write_text("\n".join(lines))
    return root


def write_cityscapes(root, kind="labelIds"):
    ids = np.zeros(256, np.uint8)  # unlabelled where it is not sure
    ids[:3] = [7, 11, 26] if kind == "labelIds" else [0, 2, 13]
    ids[255] = 0 if kind == "labelIds" else 255
    for split, start in (("train", 0), ("val", 2)):
        for number in range(2):
            picture, mask = scene(start + number)
            stem = f"{split}/aachen/aachen_{number:06d}_000019"
            save(picture, root / "leftImg8bit" / f"{stem}_leftImg8bit.png")
            save(Image.fromarray(ids[np.asarray(mask)]), root / "gtFine" / f"{stem}_gtFine_{kind}.png")
            save(mask, root / "gtFine" / f"{stem}_gtFine_instanceIds.png")  # no mask of ours
    return root


def write_folders(root, masks="annotations", val="val"):
    for split, start in (("train", 0), (val, 2)):
        for number in range(2):
            picture, mask = scene(start + number)
            save(picture, root / "images" / split / f"{number}.png")
            save(mask, root / masks / split / f"{number}.png")
    (root / "classes.txt").write_text("\n".join(CLASSES))
    return root


LAYOUTS = {
    "ade20k": write_ade,
    "cityscapes": write_cityscapes,
    "folders": write_folders,
}


def expected(seed, places=(0, 1, 2)):
    table = np.full(256, 255)
    table[:3] = places
    return table[np.asarray(scene(seed)[1])]


@pytest.mark.parametrize("form", LAYOUTS)
def test_every_layout_is_recognised_and_read_alike(form, tmp_path):
    data = SegmentationData(str(LAYOUTS[form](tmp_path)))
    assert find_format(data) == form
    places = (0, 2, 13) if form == "cityscapes" else (0, 1, 2)
    for split, start in (("train", 0), ("val", 2)):
        source = open_split(data, split)
        assert len(source) == 2
        for index in range(2):
            picture, labels = source.read(index)
            assert picture.size == SIZE
            assert labels.dtype == np.uint8
            assert labels.tolist() == expected(start + index, places).tolist()
        if form != "cityscapes":
            assert source.labels == list(CLASSES)


def test_cityscapes_has_its_classes_and_colours(tmp_path):
    source = open_split(SegmentationData(str(write_cityscapes(tmp_path))), "train")
    assert len(source.labels) == 19
    assert source.labels == [name for name, _, _ in CITY_CLASSES]
    assert source.palette[0] == [128, 64, 128]
    assert source.name(0) == "leftImg8bit/train/aachen/aachen_000000_000019_leftImg8bit.png"


def test_masks_of_cityscapes_with_numbers_for_training(tmp_path):
    data = SegmentationData(str(write_cityscapes(tmp_path, "labelTrainIds")))
    assert open_split(data, "train").read(0)[1].tolist() == expected(0, (0, 2, 13)).tolist()


def test_the_two_kinds_of_numbers_are_never_mixed(tmp_path):
    write_cityscapes(tmp_path, "labelTrainIds")
    shutil.rmtree(tmp_path / "gtFine" / "val")
    write_cityscapes(tmp_path / "other")
    shutil.copytree(tmp_path / "other" / "gtFine" / "val", tmp_path / "gtFine" / "val")
    data = SegmentationData(str(tmp_path))
    open_split(data, "train")
    with pytest.raises(ValueError, match=r"no masks in .*val whose names end in '_gtFine_labelTrainIds'"):
        open_split(data, "val")


def test_ade_without_a_list_has_numbered_classes(tmp_path):
    source = open_split(SegmentationData(str(write_ade(tmp_path, names=False))), "val")
    assert (len(source.labels), source.labels[0], source.labels[149]) == (150, "class 1", "class 150")
    assert source.palette is None


def test_folders_that_are_named_as_those_of_ade_are_not_reduced(tmp_path):
    root = write_ade(tmp_path, names=False)
    for path in [*root.rglob("ADE_*")]:
        path.rename(path.with_name(path.name.removeprefix("ADE_")))
    assert recognise(root) == "folders"
    data = SegmentationData(str(root), labels=("nothing", *CLASSES))
    assert open_split(data, "train").table.ignored == (255,)


@pytest.mark.parametrize("masks", ["annotations", "masks", "labels"])
@pytest.mark.parametrize("val", ["val", "validation", "valid", "test"])
def test_folders_have_several_names(masks, val, tmp_path):
    data = SegmentationData(str(write_folders(tmp_path, masks, val)))
    assert open_split(data, "val").read(1)[1].tolist() == expected(3).tolist()


def test_a_test_split_is_not_val_where_there_is_one(tmp_path):
    write_folders(tmp_path)
    shutil.copytree(tmp_path / "images" / "train", tmp_path / "images" / "test")
    shutil.copytree(tmp_path / "annotations" / "train", tmp_path / "annotations" / "test")
    assert open_split(SegmentationData(str(tmp_path)), "val").name(0) == "images/val/0.png"


def test_files_elsewhere_and_names_with_a_suffix(tmp_path):
    write_folders(tmp_path)
    (tmp_path / "images" / "train").rename(tmp_path / "photos")
    (tmp_path / "annotations" / "train").rename(tmp_path / "drawn")
    for path in [*(tmp_path / "drawn").iterdir()]:
        path.rename(path.with_name(f"{path.stem}_L.png"))
    data = SegmentationData(str(tmp_path), train_pictures="photos", train_masks="drawn", mask_suffix="_L")
    source = open_split(data, "train")
    assert source.name(1) == "photos/1.png"
    assert source.read(1)[1].tolist() == expected(1).tolist()
    with pytest.raises(FileNotFoundError, match=r"train_masks: no folder .*nowhere"):
        open_split(SegmentationData(str(tmp_path), train_pictures="photos", train_masks="nowhere"), "train")
    with pytest.raises(FileNotFoundError, match=r"say where the masks of train are by train_masks"):
        open_split(SegmentationData(str(tmp_path), train_pictures="photos"), "train")


def test_two_folders_are_enough(tmp_path):
    write_folders(tmp_path / "data")
    root = tmp_path / "flat"
    shutil.move(tmp_path / "data" / "images" / "train", root / "x")
    shutil.move(tmp_path / "data" / "annotations" / "train", root / "y")
    data = SegmentationData(
        str(root), train_pictures="x", train_masks="y", val_pictures="x", val_masks="y", labels=CLASSES
    )
    assert find_format(data) == "folders"
    assert len(open_split(data, "val")) == 2


def test_pictures_and_masks_may_have_other_endings(tmp_path):
    write_folders(tmp_path)
    (tmp_path / "images" / "train" / "0.png").rename(tmp_path / "images" / "train" / "0.JPG")
    assert [open_split(SegmentationData(str(tmp_path)), "train").name(0)] == ["images/train/0.JPG"]


@pytest.mark.parametrize(("kind", "partner"), [("images", "picture"), ("annotations", "mask")])
def test_a_missing_partner_is_named(kind, partner, tmp_path):
    write_folders(tmp_path)
    (tmp_path / kind / "train" / "1.png").unlink()
    other = {"images": "annotations", "annotations": "images"}[kind]
    with pytest.raises(ValueError, match=rf"1 \w+ of train have no {partner}: {other}/train/1\.png"):
        open_split(SegmentationData(str(tmp_path)), "train")


def test_two_masks_of_one_name_are_not_chosen_from(tmp_path):
    write_folders(tmp_path)
    shutil.copy(tmp_path / "annotations" / "train" / "1.png", tmp_path / "annotations" / "train" / "1.tif")
    with pytest.raises(ValueError, match=r"1 masks of train have no picture: annotations/train/1\.tif"):
        open_split(SegmentationData(str(tmp_path)), "train")


def test_what_is_wrong_is_said_when_a_split_is_opened(tmp_path):
    write_folders(tmp_path)
    path = tmp_path / "annotations" / "train" / "1.png"
    Image.new("L", SIZE, 77).save(path)
    with pytest.raises(ValueError, match=r"annotations/train/1\.png: unknown value 77 \(1,200 pixels\); legal: 0-2"):
        open_split(SegmentationData(str(tmp_path)), "train")
    Image.new("L", (9, 9)).save(path)
    with pytest.raises(ValueError, match=r"1\.png: the mask has 9 x 9 pixels, its picture 40 x 30"):
        open_split(SegmentationData(str(tmp_path)), "train")


def late_fault(root, content):
    """A split that is opened before one of its masks goes bad."""
    write_masks(root, num_train=6, num_val=1, size=SIZE)
    source = open_split(SegmentationData(str(root)), "train")
    path = root / "annotations" / "train" / "003.png"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        content.save(path)
    return source


@pytest.mark.parametrize("seed", [None, 0], ids=["evaluation", "training"])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_wrong_mask_ends_the_reading(seed, workers, tmp_path):
    source = late_fault(tmp_path, Image.new("L", SIZE, 9))
    data = SegmentationData(image_size=32)
    transform = EvaluationTransform(data) if seed is None else TrainingTransform(data, MaskVariationConfig())
    loader = PictureLoader(Pictures(source, transform, 3, seed), EpochBatches(6, 2, seed), workers, collate)
    with pytest.raises(WrongAnnotation, match=r"003\.png: unknown value 9 "):
        list(loader)


def test_a_mask_that_cannot_be_read_gives_way_as_a_picture_does(tmp_path):
    source = late_fault(tmp_path, b"no picture")
    loader = PictureLoader(
        Pictures(source, EvaluationTransform(SegmentationData())), EpochBatches(6, 3), collate=collate
    )
    told = []
    loader.on_unreadable = told.extend
    assert sum(len(batch["image"]) for batch in loader) == 5
    assert [name for name, _ in told] == ["images/train/003.png"]


def test_a_mask_that_cannot_be_read_does_not_stop_the_opening(tmp_path):
    write_folders(tmp_path)
    (tmp_path / "annotations" / "train" / "0.png").write_bytes(b"")
    assert len(open_split(SegmentationData(str(tmp_path)), "train")) == 2


def test_a_missing_list_of_classes_is_asked_for_with_the_values_that_are_there(tmp_path):
    (write_folders(tmp_path) / "classes.txt").unlink()
    with pytest.raises(ValueError, match=r"no list of classes for .*data\.labels.*have the values 0-2, 255"):
        read_classes(SegmentationData(str(tmp_path)))


def test_a_recipe_can_name_classes_and_values(tmp_path):
    (write_folders(tmp_path) / "classes.txt").unlink()
    data = SegmentationData(str(tmp_path), labels=("disc", "ground"), values=(2, 0), ignore=(1,))
    assert open_split(data, "train").read(0)[1].tolist() == expected(0, (1, 255, 0)).tolist()


def test_colours_of_a_list_are_the_palette(tmp_path):
    root = write_folders(tmp_path)
    (root / "classes.txt").write_text("ground 9 9 9\nsquare 255 0 0\ndisc 0 0 255\n")
    assert open_split(SegmentationData(str(root)), "train").palette == [[9, 9, 9], [255, 0, 0], [0, 0, 255]]
    named = SegmentationData(str(root), labels=CLASSES)
    assert read_classes(named).colors is not None
    assert read_classes(SegmentationData(str(root), labels=("a", "b", "c"))).colors is None


def test_nothing_recognised_says_what_was_looked_for(tmp_path):
    (tmp_path / "pictures").mkdir()
    with pytest.raises(ValueError, match=r"no masks recognised in .*, which has pictures; looked for ade20k: images/"):
        find_format(SegmentationData(str(tmp_path)))
    with pytest.raises(FileNotFoundError, match="no folder"):
        find_format(SegmentationData(str(tmp_path / "none")))
    with pytest.raises(ValueError, match=r"data\.root: name the folder"):
        find_format(SegmentationData())


def test_files_of_text_beside_pictures_are_no_masks(tmp_path):
    save(Image.new("RGB", SIZE), tmp_path / "images" / "train" / "0.png")
    (tmp_path / "labels" / "train").mkdir(parents=True)
    (tmp_path / "labels" / "train" / "0.txt").write_text("0 .5 .5 .1 .1")
    assert recognise(tmp_path) is None


def test_a_missing_split_says_what_was_looked_for(tmp_path):
    shutil.rmtree(write_folders(tmp_path) / "images" / "val")
    with pytest.raises(FileNotFoundError, match=r"no val in .*: looked for images/val and annotations/val"):
        open_split(SegmentationData(str(tmp_path)), "val")
    with pytest.raises(ValueError, match="unknown split 'test'"):
        open_split(SegmentationData(str(tmp_path)), "test")


def test_other_classes_than_those_of_training_are_refused(tmp_path):
    source = open_split(SegmentationData(str(write_folders(tmp_path))), "train")
    check_classes(source, CLASSES)
    with pytest.raises(
        ValueError, match=r"its 3 classes are not the 3 of training; first that differs: 'disc' instead"
    ):
        check_classes(source, ("ground", "square", "ring"))
    with pytest.raises(ValueError, match="'disc' instead of None"):
        check_classes(source, CLASSES[:2])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"format": "voc"}, "unknown format 'voc'"),
        ({"interpolation": "cubic"}, "did you mean 'bicubic'"),
        ({"image_size": 100}, "image_size must be a multiple of 32; got 100"),
        ({"short_side": 0}, "short_side must be at least 1, or null; got 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        SegmentationData(**settings)


def test_settings_go_through_a_recipe(tmp_path):
    data = SegmentationData("x", labels=("a", "b"), ignore=(11,), short_side=64)
    assert from_mapping(SegmentationData, to_mapping(data)) == data
    assert data.example().shape == (1, 3, 512, 512)
    assert data.preprocessing()["short_side"] == 64


def test_sources_can_be_sent_to_loader_workers(tmp_path):
    source = open_split(SegmentationData(str(write_folders(tmp_path))), "train")
    again = pickle.loads(pickle.dumps(source))
    assert again.read(0)[1].tolist() == source.read(0)[1].tolist()
