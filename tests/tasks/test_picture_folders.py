import pickle

import pytest
from PIL import Image

from castling.tasks.picture_folders import open_folder


def save_pictures(folder, *names):
    for shade, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 3), shade).save(folder / name)


def names(root, split):
    source = open_folder(str(root), split)
    return [source.name(index) for index in range(len(source))]


def many(count=300):
    return [f"{number}.png" if number % 2 else f"deep/er/{number}.jpg" for number in range(count)]


def test_folders_train_and_val_are_the_splits(tmp_path):
    save_pictures(tmp_path, "train/b.png", "train/deep/a.JPG", "val/c.png", "other/d.png")
    assert names(tmp_path, "train") == ["train/b.png", "train/deep/a.JPG"]
    assert names(tmp_path, "val") == ["val/c.png"]


def test_one_picture_in_ten_is_held_out_elsewhere(tmp_path):
    save_pictures(tmp_path, *many())
    train, val = names(tmp_path, "train"), names(tmp_path, "val")
    assert sorted(train + val) == sorted(many())
    assert 15 <= len(val) <= 45
    assert (train, val) == (names(tmp_path, "train"), names(tmp_path, "val"))
    assert {name.startswith("deep/") for name in val} == {True, False}


def test_pictures_that_come_or_go_move_no_other_to_the_other_split(tmp_path):
    save_pictures(tmp_path, *many())
    train, val = set(names(tmp_path, "train")), set(names(tmp_path, "val"))
    gone = set(many()[::3])
    for name in gone:
        (tmp_path / name).unlink()
    save_pictures(tmp_path, *(f"new/{number}.png" for number in range(40)))
    for split, before in (("train", train), ("val", val)):
        after = set(names(tmp_path, split))
        assert {name for name in after if not name.startswith("new/")} == before - gone


def test_folder_may_be_renamed(tmp_path):
    save_pictures(tmp_path / "one", *many(60))
    before = names(tmp_path / "one", "val")
    (tmp_path / "one").rename(tmp_path / "two")
    assert names(tmp_path / "two", "val") == before


def test_train_without_val_is_a_folder_like_any_other(tmp_path):
    save_pictures(tmp_path / "train", *many(60))
    found = names(tmp_path, "train") + names(tmp_path, "val")
    assert sorted(found) == sorted(f"train/{name}" for name in many(60))


def test_pictures_are_read_and_nothing_is_known_of_them(tmp_path):
    save_pictures(tmp_path, "train/a.png", "train/b.png", "val/c.png")
    (tmp_path / "train/notes.txt").write_text("no picture")
    source = open_folder(str(tmp_path), "train")
    picture, known = source.read(1)
    assert (len(source), picture.size, picture.getpixel((0, 0)), known) == (2, (4, 3), 1, None)
    copied = pickle.loads(pickle.dumps(source))  # for loader workers
    assert copied.read(1)[0].tobytes() == picture.tobytes()


def test_folder_must_be_named_and_there(tmp_path):
    with pytest.raises(ValueError, match=r"data\.root: name the folder"):
        open_folder(None, "train")
    with pytest.raises(FileNotFoundError, match=r"no folder .*nowhere"):
        open_folder(str(tmp_path / "nowhere"), "train")


def test_split_without_pictures_is_named(tmp_path):
    (tmp_path / "val").mkdir()
    save_pictures(tmp_path, "train/a.png")
    for root, split in ((tmp_path, "val"), (tmp_path / "val", "train")):
        with pytest.raises(ValueError, match=f"no pictures for {split} in {root}"):
            open_folder(str(root), split)


def test_another_folder_may_stand_for_val(tmp_path):
    save_pictures(tmp_path, "train/a.png", "test/b.png")
    assert (names(tmp_path, "train"), names(tmp_path, "val")) == (["train/a.png"], ["test/b.png"])
    save_pictures(tmp_path, "validation/c.png")
    assert names(tmp_path, "val") == ["validation/c.png"]
    save_pictures(tmp_path, "val/d.png")
    assert names(tmp_path, "val") == ["val/d.png"]
