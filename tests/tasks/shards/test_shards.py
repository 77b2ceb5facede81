"""Shards as a source of classification and pretraining: pictures, labels, splits, and what is refused."""

import gzip
import logging
import os
import pickle
import tarfile

import pytest
import torch
from archive_files import NoFile, example, picture_bytes, tar_bytes, write_shards, write_tar

from castling.tasks.batches import EpochBatches
from castling.tasks.picture_sources import open_source
from castling.tasks.pictures import PictureLoader, Pictures
from castling.tasks.preparation import PictureConfig, VariationConfig, train_transform
from castling.tasks.pretraining.data import PretrainingData, open_pictures
from castling.tasks.shards import source as source_module
from castling.tasks.shards.labels import label_text

DATA = PictureConfig(image_size=8)


class Example:
    def __call__(self, picture, label):
        return {"image": train_transform(DATA, VariationConfig())(picture), "target": label}


@pytest.fixture
def root(tmp_path):
    write_shards(tmp_path, "train", [0, 2, 1, 1, 2, 0])
    write_shards(tmp_path, "val", [1, 2], start=50)
    return tmp_path


def unpacked(root):
    """The same pictures in folders of classes."""
    folder = root / "folder"
    for split in ("train", "val"):
        for path in sorted(root.glob(f"{split}-*.tar")):
            with tarfile.open(path) as tar:
                for name in tar.getnames():
                    if name.endswith(".png"):
                        label = tar.extractfile(name.replace(".png", ".cls")).read().decode()
                        (folder / split / label).mkdir(parents=True, exist_ok=True)
                        (folder / split / label / name).write_bytes(tar.extractfile(name).read())
    return folder


def test_pictures_and_classes_are_those_of_the_folder(root):
    shards, folder = open_source("shards", "train", root), open_source("folder", "train", unpacked(root))
    assert (len(shards), shards.labels) == (6, folder.labels)
    assert shards.name(4) == "train-000001.tar/0004.png"
    in_folder = {folder.name(index).rpartition("/")[2]: folder.read(index) for index in range(6)}
    for index in range(6):
        picture, target = shards.read(index)
        other, label = in_folder[shards.name(index).rpartition("/")[2]]
        assert (picture.tobytes(), target, picture.format) == (other.tobytes(), label, other.format)
    assert [open_source("shards", "val", root).read(index)[1] for index in range(2)] == [1, 2]


def test_reading_processes_see_what_one_process_sees(root):
    write_shards(root, "train", [n % 3 for n in range(60)], per_shard=7)
    found = []
    for workers in (0, 2):
        source = open_source("shards", "train", root)
        source.read(0)  # a file is open when the readers are forked
        loader = PictureLoader(Pictures(source, Example(), 3, seed=5), EpochBatches(60, 4, seed=5), workers)
        loader.seek(2, 3)
        batches = list(loader)
        found.append((torch.cat([batch["image"] for batch in batches]), torch.cat([b["index"] for b in batches])))
        del loader
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


def test_the_middle_of_a_shard_is_where_a_run_goes_on(root):
    write_shards(root, "train", [n % 3 for n in range(60)], per_shard=25)
    batches = []
    for start in (0, 7):
        source = open_source("shards", "train", root)
        loader = PictureLoader(Pictures(source, Example(), 3, seed=5), EpochBatches(60, 4, seed=5))
        loader.seek(1, start)
        batches.append(list(loader))
    assert len(batches[1]) == 8
    for whole, rest in zip(batches[0][7:], batches[1], strict=True):
        assert torch.equal(whole["image"], rest["image"])
        assert torch.equal(whole["target"], rest["target"])


def open_archives():
    """The archives that this process has open, by descriptor."""
    places = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
    return [place for place in places if os.path.exists(place) and os.readlink(place).endswith(".tar")]


def test_a_process_opens_its_own_files_and_few_of_them(root, monkeypatch):
    monkeypatch.setattr(source_module, "MOST_OPEN", 8)
    write_shards(root, "train", [n % 3 for n in range(40)], per_shard=2)
    source = open_source("shards", "train", root)
    right = [source.stored(index) for index in range(40)]
    assert len(open_archives()) == 8
    parent, child = os.pipe()
    if (process := os.fork()) == 0:
        same = [source.stored(index) for index in range(40)] == right
        os.write(child, b"%d %d" % (same, len(open_archives())))
        os._exit(0)
    os.waitpid(process, 0)
    assert os.read(parent, 99) == b"1 8"
    assert len(pickle.dumps(source)) < 1500


@pytest.mark.parametrize(
    ("ending", "content", "text"),
    [
        ("cls", b"12", "12"),
        ("cls", b" 12\n", "12"),
        ("cls", b"sheep dog", "sheep dog"),
        ("cls", b"", None),
        ("cls", b"\xff\xfe", None),
        ("cls", b"1\n2", None),
        ("txt", b"cat\n", "cat"),
        ("json", b'{"label": 3, "width": 9}', "3"),
        ("json", b'{"cls": "cat"}', "cat"),
        ("json", b'{"label": true}', None),
        ("json", b'{"label": 1.5}', None),
        ("json", b"[1]", None),
        ("json", b"[" * 100_000, None),
        ("json", b"{", None),
    ],
)
def test_what_labels_say(ending, content, text):
    assert label_text(ending, content) == text


def test_labels_are_classes_json_or_texts_and_the_first_counts(tmp_path):
    members = [
        ("1.png", picture_bytes(1)),
        ("1.txt", b"a picture of a cat"),
        ("1.json", b'{"label": "dog"}'),
        ("1.cls", b"cat"),
        ("a/2.json", b'{"label": "dog"}'),
        ("a/2.JPG", picture_bytes(2)),
        ("3.txt", b"emu"),
        ("3.png", picture_bytes(3)),
    ]
    write_tar(tmp_path / "train-0.tar", members)
    source = open_source("shards", "train", tmp_path)
    assert source.labels == ["cat", "dog", "emu"]
    assert {source.name(n): source.read(n)[1] for n in range(3)} == {
        "train-0.tar/1.png": 0,
        "train-0.tar/a/2.JPG": 1,
        "train-0.tar/3.png": 2,
    }


def test_classes_txt_names_numbers_and_orders_names(tmp_path):
    write_tar(tmp_path / "train-0.tar", [*example("1", 1, 1), *example("2", 2, "cat"), *example("3", 3, "02")])
    (tmp_path / "classes.txt").write_text("emu\ndog\ncat\n")
    source = open_source("shards", "train", tmp_path)
    assert source.labels == ["emu", "dog", "cat"]
    assert [source.read(n)[1] for n in range(3)] == [1, 2, 2]
    (tmp_path / "classes.txt").write_text("emu\ncat\n")
    with pytest.raises(ValueError, match=r"has classes that classes.txt lacks: 02; there: emu, cat"):
        open_source("shards", "train", tmp_path)


def test_numbers_that_no_class_has_are_refused(root):
    write_shards(root, "val", [1, 7])
    with pytest.raises(ValueError, match=r"val of .* has classes that train lacks: 7; there: 0, 1, 2"):
        open_source("shards", "val", root)
    write_shards(root, "train", [0, 10**30])
    with pytest.raises(ValueError, match="cannot be the number of a class"):
        open_source("shards", "train", root)


def test_pictures_without_a_label_are_left_out_by_name(root, caplog):
    members = [*example("1", 1, 0), *example("2", 2), *example("3", 3, "x" * 300), *example("4", 4, 2)]
    write_tar(root / "train-000000.tar", members)
    with caplog.at_level(logging.WARNING):
        source = open_source("shards", "train", root)
    assert "2 pictures without a label, such as train-000000.tar/2.png, train-000000.tar/3.png" in caplog.text
    loader = PictureLoader(Pictures(source, Example()), EpochBatches(len(source), 8))
    told = []
    loader.on_unreadable = told.extend
    (batch,) = loader
    assert batch["target"].tolist() == [0, 2, 2, 0]
    assert [name for name, _ in told] == ["train-000000.tar/2.png", "train-000000.tar/3.png"]
    assert told[0][1] == "ValueError: train-000000.tar/2.png has no label"


def test_bad_pictures_are_left_out_by_name(root):
    members = [
        *example("1", 1, 0),
        ("2.png", b"no picture"),
        ("2.cls", b"1"),
        ("3.png", picture_bytes(3)[:-40]),
        ("3.cls", b"1"),
    ]
    write_tar(root / "train-000000.tar", members)
    source = open_source("shards", "train", root)
    told = []
    loader = PictureLoader(Pictures(source, Example()), EpochBatches(len(source), 8))
    loader.on_unreadable = told.extend
    assert [batch["target"].tolist() for batch in loader] == [[0, 2, 0]]
    assert told[0] == (
        "train-000000.tar/2.png",
        "UnidentifiedImageError: cannot identify image file 'train-000000.tar/2.png'",
    )
    assert [name for name, _ in told] == ["train-000000.tar/2.png", "train-000000.tar/3.png"]


def test_an_archive_that_shrinks_while_it_is_read_is_said(root):
    source = open_source("shards", "train", root)
    os.truncate(root / "train-000000.tar", 600)
    with pytest.raises(
        ValueError, match=r"train-000000.tar ends before byte .*: it has changed since its index was made"
    ):
        source.read(2)


REFUSED = {
    "two pictures": ([*example("a", 1, 1), ("a.jpg", b"x")], "two pictures with one key: train-000000.tar/a.jpg"),
    "the same again": ([*example("a", 1, 1), *example("b", 1, 1), *example("a", 2)], "two pictures with one key"),
    "two labels": ([*example("a", 1, 1), ("a.cls", b"2")], "two labels with one key: train-000000.tar/a.cls"),
    "absolute": ([*example("/a", 1, 1)], "names that lead out of the archive: train-000000.tar//a.png"),
    "upwards": ([*example("../a", 1, 1)], "names that lead out of the archive: train-000000.tar/../a.png"),
    "link": ([*example("0", 1, 1), ("a.png", NoFile(tarfile.SYMTYPE))], r"links \(tar makes files of them .*: .*a.png"),
    "hard link": ([*example("0", 1, 1), ("a.png", NoFile(tarfile.LNKTYPE))], r"links .*: train-000000.tar/a.png"),
    "pipe": ([*example("0", 1, 1), ("a.png", NoFile(tarfile.FIFOTYPE))], "devices and pipes: train-000000.tar/a.png"),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_members_that_cannot_be_meant_are_refused_in_one_line(wrong, root):
    members, message = REFUSED[wrong]
    write_tar(root / "train-000000.tar", members)
    with pytest.raises(ValueError, match=message) as error:
        open_source("shards", "train", root)
    assert "\n" not in str(error.value)


def test_archives_that_are_cut_off_are_refused_with_their_names(root):
    for name in ("train-000000.tar", "train-000001.tar"):
        path = root / name
        path.write_bytes(path.read_bytes()[:700])
    with pytest.raises(ValueError, match=r"cannot be read: train-000000.tar is cut off.*, train-000001.tar is cut off"):
        open_source("shards", "train", root)


def test_many_troubles_are_counted(root):
    members = [member for n in range(9) for member in [*example(f"{n}", n, 1), (f"{n}.jpg", b"")]]
    write_tar(root / "train-000000.tar", members)
    with pytest.raises(ValueError, match=r"one key: .*/0.jpg, .*/1.jpg, .*/2.jpg and 6 more$"):
        open_source("shards", "train", root)


def test_compressed_archives_are_refused_with_a_sentence(root):
    packed = gzip.compress((root / "train-000000.tar").read_bytes())
    (root / "train-000007.tar.gz").write_bytes(packed)
    with pytest.raises(ValueError, match=r"train-000007.tar.gz is compressed, as 1 of 3 archives are: .*unpack it"):
        open_source("shards", "train", root)
    (root / "train-000007.tar.gz").rename(root / "train-000007.tar")
    with pytest.raises(ValueError, match=r"train-000007.tar is compressed \(gzip\)"):
        open_source("shards", "train", root)


@pytest.mark.parametrize(
    "names",
    [
        ("train-000000.tar", "val-000000.tar"),
        ("imagenet1k-train-0000.tar", "imagenet1k-validation-00.tar"),
        ("My_TRAIN_0.tar", "my_test_0.tar"),
        ("train/0.tar", "val/0.tar"),
        ("train/deep/0.tar", "validation/x.tar"),
    ],
)
def test_splits_are_known_by_words_or_folders(names, tmp_path):
    for seed, name in enumerate(names):
        write_tar(tmp_path / name, [*example("1", seed, 0), *example("2", 9 + seed, 1)])
    write_tar(tmp_path / "trainer.tar", [("x.png", b"")])
    write_tar(tmp_path / ".train.tar", [("x.png", b"")])
    for split, name in zip(("train", "val"), names, strict=True):
        source = open_source("shards", split, tmp_path)
        assert [source.name(n) for n in range(len(source))] == [f"{name}/1.png", f"{name}/2.png"]


def test_what_is_missing_is_said(tmp_path, root):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"no archives for train in .*: expected train-000000.tar .*; found nothing"):
        open_source("shards", "train", tmp_path / "empty")
    write_tar(tmp_path / "empty/train-0.tar", [("readme.txt", b"")])
    with pytest.raises(ValueError, match=r"no pictures in 1 archive of .*, first train-0.tar"):
        open_source("shards", "train", tmp_path / "empty")
    write_tar(tmp_path / "empty/train-0.tar", example("1", 1))
    with pytest.raises(ValueError, match=r"no picture of train .* has a label: expected KEY.cls beside KEY.jpg"):
        open_source("shards", "train", tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        open_source("shards", "train", tmp_path / "nowhere")


def test_what_is_passed_over_is_said_once(root, caplog):
    members = [*example("1", 1, 0), ("a.2.png", b""), ("a/._1.png", b""), ("1.seg.npy", b""), ("5.cls", b"3")]
    write_tar(root / "train-000000.tar", members)
    with caplog.at_level(logging.WARNING):
        source = open_source("shards", "train", root)
        assert len(source) == 3
        lines = [record.getMessage() for record in caplog.records]
        assert any("a key ends at the first dot of a name: train-000000.tar/a.2.png" in line for line in lines)
        assert "labels without a picture: train-000000.tar/5" in lines
        caplog.clear()
        open_source("shards", "train", root)
        assert "first dot" not in caplog.text


def test_classes_without_pictures_are_warned_about(root, caplog):
    with caplog.at_level(logging.WARNING):
        open_source("shards", "val", root)
    assert "no pictures in val of" in caplog.text
    assert "of these classes, 1 of 3: 0" in caplog.text


def test_pretraining_takes_pictures_without_labels(root):
    data = PretrainingData(source="shards", root=str(root))
    assert [len(open_pictures(data, split)) for split in ("train", "val")] == [6, 2]
    picture, number = open_pictures(data, "train").read(3)
    assert (picture.size, number) == ((12, 10), 3)


def test_pretraining_holds_out_a_tenth_by_name_where_there_are_no_splits(tmp_path):
    members = [member for n in range(60) for member in example(f"{n:03d}", n)]
    (tmp_path / "deep").mkdir()
    write_tar(tmp_path / "deep/some.tar", members)
    data = PretrainingData(source="shards", root=str(tmp_path))
    train, val = (open_pictures(data, split) for split in ("train", "val"))
    names = [{split.name(n) for n in range(len(split))} for split in (train, val)]
    assert len(names[0] | names[1]) == len(train) + len(val) == 60
    assert 1 <= len(val) <= 15
    write_tar(tmp_path / "deep/some.tar", members[:40])
    fewer = open_pictures(data, "val")
    assert {fewer.name(n) for n in range(len(fewer))} <= names[1]  # those that go move no other


def test_pretraining_says_what_is_missing(tmp_path):
    with pytest.raises(ValueError, match=r"no archives in .*: expected train-000000.tar .*, or any .tar"):
        open_pictures(PretrainingData(source="shards", root=str(tmp_path)), "train")
    with pytest.raises(ValueError, match="name the folder"):
        open_pictures(PretrainingData(source="shards"), "train")


def test_the_name_of_an_archive_in_an_archive_is_no_picture(tmp_path):
    write_tar(tmp_path / "train-0.tar", [("n01.tar", tar_bytes(example("1", 1, 1)))])
    with pytest.raises(ValueError, match="no pictures in 1 archive"):
        open_source("shards", "train", tmp_path)
