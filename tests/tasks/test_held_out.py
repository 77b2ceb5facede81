"""A validation split of the training pictures: which pictures it has, and who reads the data's own."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from box_pictures import box_recipe, write_boxes
from mask_pictures import mask_recipe, write_masks

from castling.tasks import held_out
from castling.tasks.batches import Shard
from castling.tasks.classification.data import DataConfig
from castling.tasks.classification.task import Classification, ClassificationConfig
from castling.tasks.held_out import draw_held_out, open_splits
from castling.tasks.networks import NetworkConfig
from castling.tasks.picture_sources import open_source
from castling.tasks.preparation import PictureConfig
from castling.tasks.pretraining.data import PretrainingData, open_pictures
from castling.training import parse_recipe

DIGITS = {"source": "digits", "image_size": 16, "channels": 1, "mean": (0.3,), "std": (0.4,), "crop_share": 1.0}
MODEL = NetworkConfig("castling_deit_tiny_patch16_224", options={"img_size": 16, "patch_size": 4})


def digits(share):
    return Classification(ClassificationConfig(MODEL, DataConfig(**DIGITS, held_out=share)))


def names(source):
    return [source.name(index) for index in range(len(source))]


def test_splits_are_disjoint_and_together_the_training_pictures():
    sources, whole = digits(0.1).sources, open_source("digits", "train")
    train, val = names(sources["train"]), names(sources["val"])
    assert not set(train) & set(val)
    assert sorted(train + val) == sorted(names(whole))
    assert all(name.startswith("train/") for name in train + val)
    index = names(whole).index(val[3])
    picture, target = sources["val"].read(3)
    assert np.array_equal(np.asarray(picture), np.asarray(whole.read(index)[0]))
    assert target == whole.target(index) == sources["val"].target(3)
    assert sources["val"].stored(3) is None
    assert sources["val"].labels == whole.labels


def test_every_class_gives_its_share():
    sources, whole = digits(0.2).sources, open_source("digits", "train")
    counts = np.bincount([whole.target(index) for index in range(len(whole))])
    held = np.bincount([sources["val"].target(index) for index in range(len(sources["val"]))])
    assert held.tolist() == [int(np.floor(0.2 * count + 0.5)) for count in counts]


def test_without_a_share_validation_is_the_datas_own():
    sources = digits(0.0).sources
    assert names(sources["val"]) == names(open_source("digits", "val"))
    assert len(sources["train"]) == len(open_source("digits", "train"))


def test_tiny_classes_keep_a_picture_to_train_on():
    classes = np.array([5] * 1 + [6] * 2 + [7] * 3 + [-1] * 4)
    few, many = draw_held_out(classes, 0.01), draw_held_out(classes, 0.99)
    assert [int(few[classes == number].sum()) for number in (5, 6, 7, -1)] == [0, 1, 1, 1]
    assert [int(many[classes == number].sum()) for number in (5, 6, 7, -1)] == [0, 1, 2, 3]


def test_other_classes_move_no_picture():
    """What is drawn of a class depends on that class alone."""
    first = draw_held_out(np.repeat([0, 1], 40), 0.25)
    more = draw_held_out(np.repeat([0, 1, 2], 40), 0.25)
    assert np.array_equal(first, more[:80])
    assert not np.array_equal(first[:40], first[40:])


def test_it_is_the_same_in_another_process_and_under_any_seed(monkeypatch):
    program = (
        "import numpy as np; np.random.seed(7); from castling.tasks.held_out import draw_held_out; "
        "print(np.flatnonzero(draw_held_out(np.arange(200) % 3, 0.1)).tolist())"
    )
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert other.strip() == str(np.flatnonzero(draw_held_out(np.arange(200) % 3, 0.1)).tolist())
    first = names(digits(0.1).sources["val"])
    monkeypatch.setattr(held_out, "DRAWN_WITH", 1)
    assert names(digits(0.1).sources["val"]) != first


def test_shards_of_processes_share_it():
    task = digits(0.1)
    whole = [int(i) for batch in task.loader("val", 32) for i in batch["index"]]
    parts = [
        [int(i) for batch in task.loader("val", 32, shard=Shard(rank, 2)) for i in batch["index"]] for rank in (0, 1)
    ]
    assert sorted(parts[0] + parts[1]) == whole == list(range(len(task.sources["val"])))


def test_the_datas_own_split_is_opened_for_the_test_alone(monkeypatch):
    opened = []

    def noted(kind, split, *args, **options):
        opened.append(split)
        return open_source(kind, split, *args, **options)

    monkeypatch.setattr("castling.tasks.classification.data.open_source", noted)
    task = digits(0.1)
    assert len(task.loader("val", 64))
    assert len(task.loader("train", 64, seed=0))
    assert opened == ["train"]
    test = task.on_test()
    assert test.facts == task.facts
    assert names(test.sources["val"]) == names(open_source("digits", "val"))
    assert opened == ["train", "train", "val"]


def test_a_task_that_was_evaluated_on_it_has_no_test():
    with pytest.raises(ValueError, match="were looked at in training already"):
        digits(0.0).on_test()


def test_pictures_without_labels_are_held_out_too():
    data = PretrainingData(source="digits", held_out=0.25)
    sources = open_splits(lambda split: open_pictures(data, split), data.held_out)
    assert len(sources["val"]) == 361  # of 1,442
    assert not set(names(sources["train"])) & set(names(sources["val"]))


@pytest.mark.parametrize("kind", ["boxes", "masks"])
def test_boxes_and_masks_are_held_out_with_their_pictures(kind, tmp_path):
    if kind == "boxes":
        pytest.importorskip("faster_coco_eval")
        values, num_own = box_recipe(write_boxes(tmp_path / "data")), 8
    else:
        values, num_own = mask_recipe(write_masks(tmp_path / "data")), 8
    whole = parse_recipe(values).make_task()
    values["data"]["held_out"] = 0.25
    task = parse_recipe(values).make_task()
    assert task.facts == whole.facts
    train, val = names(task.sources["train"]), names(task.sources["val"])
    assert (len(train), len(val)) == (12, 4)
    assert sorted(train + val) == sorted(names(whole.sources["train"]))
    (batch,) = task.loader("val", 4)
    assert batch["index"].tolist() == [0, 1, 2, 3]
    assert len(task.on_test().sources["val"]) == num_own
    values["data"]["held_out"] = 1
    with pytest.raises(ValueError, match="held_out is the share of the training pictures"):
        parse_recipe(values)


@pytest.mark.parametrize("share", [1.0, -0.1, 7])
def test_shares_that_leave_nothing_are_refused(share):
    for kind in (DataConfig, PretrainingData):
        with pytest.raises(ValueError, match="held_out is the share of the training pictures"):
            kind(held_out=share)


def test_a_share_of_single_pictures_is_refused():
    source = replace(open_source("digits", "train"), pictures=np.zeros((2, 8, 8), np.uint8), targets=np.array([0, 1]))
    with pytest.raises(ValueError, match=r"data\.held_out=0\.5 leaves no picture for one of the splits: there are 2"):
        open_splits(lambda split: source, 0.5)
    assert not hasattr(PictureConfig(), "held_out")  # tasks that know nothing of it refuse the setting
