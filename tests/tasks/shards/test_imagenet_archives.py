"""ImageNet's own archives, made small: names, order and labels are those of unpacked folders."""

import sys
import tarfile

import numpy as np
import pytest
from archive_files import NoFile, picture_bytes, tar_bytes, write_imagenet, write_tar
from scipy.io import savemat

from castling.tasks.picture_sources import open_source
from castling.tasks.pretraining.data import PretrainingData, open_pictures


@pytest.fixture
def root(tmp_path):
    write_imagenet(tmp_path)
    return tmp_path


def unpack(root):
    """As the instructions for ImageNet have it: a folder for each class."""
    folder = root / "folder"
    with tarfile.open(root / "ILSVRC2012_img_train.tar") as outer:
        for member in outer:
            with tarfile.open(fileobj=outer.extractfile(member)) as inner:
                for picture in inner:
                    path = folder / "train" / member.name.removesuffix(".tar") / picture.name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(inner.extractfile(picture).read())
    with tarfile.open(root / "ILSVRC2012_img_val.tar") as tar:
        classes = (root / "val_labels.txt").read_text().split()
        for picture, label in zip(sorted(tar.getnames()), classes, strict=True):
            path = folder / "val" / label / picture
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(tar.extractfile(picture).read())
    return folder


@pytest.mark.parametrize("split", ["train", "val"])
def test_archives_are_what_they_would_be_unpacked(split, root):
    ours, folder = open_source("shards", split, root), open_source("folder", split, unpack(root))
    assert ours.labels == folder.labels == ["n01", "n02"]
    assert [ours.name(n) for n in range(len(ours))] == [folder.name(n) for n in range(len(folder))]
    for number in range(len(folder)):
        assert ours.stored(number) == folder.stored(number)
        (picture, target), (other, label) = ours.read(number), folder.read(number)
        assert (picture.tobytes(), target) == (other.tobytes(), label)


def kit(root, numbers="2\n1\n2\n", names=("n01", "n02", "n00")):
    """The development kit's two files; the last row is of a class that is none of the thousand."""
    (root / "val_labels.txt").unlink(missing_ok=True)
    folder = root / "ILSVRC2012_devkit_t12" / "data"
    folder.mkdir(parents=True)
    (folder / "ILSVRC2012_validation_ground_truth.txt").write_text(numbers)
    synsets = np.zeros(len(names), [("ILSVRC2012_ID", "O"), ("WNID", "O")])
    for place, name in enumerate(names):
        synsets[place] = (place + 1, name)
    savemat(folder / "meta.mat", {"synsets": synsets.reshape(-1, 1)})
    return folder


def named(root):
    lines = [
        "ILSVRC2012_val_00000001.JPEG n01",
        "x/ILSVRC2012_val_00000002.JPEG n02",
        "ILSVRC2012_val_00000000.JPEG n02",
    ]
    (root / "val_labels.txt").write_text("\n".join(lines) + "\n\n")


LABELS = {
    "in order": lambda root: None,
    "by name": named,
    "of the kit": kit,
    "under another name": lambda root: (root / "val_labels.txt").rename(
        root / "imagenet_2012_validation_synset_labels.txt"
    ),
}


@pytest.mark.parametrize("form", LABELS)
def test_labels_of_validation_pictures(form, root):
    LABELS[form](root)
    source = open_source("shards", "val", root)
    assert {source.name(n): source.read(n)[1] for n in range(3)} == {
        "val/n01/ILSVRC2012_val_00000001.JPEG": 0,
        "val/n02/ILSVRC2012_val_00000000.JPEG": 1,
        "val/n02/ILSVRC2012_val_00000002.JPEG": 1,
    }


def test_other_labels_make_the_index_old(root):
    assert open_source("shards", "val", root).name(0).startswith("val/n01")
    (root / "val_labels.txt").write_text("n02\nn02\nn02\n")
    source = open_source("shards", "val", root)
    assert [source.read(number)[1] for number in range(3)] == [1, 1, 1]


WRONG = {
    "none": (lambda root: (root / "val_labels.txt").unlink(), "val.tar has no labels in it: expected .*val_labels.txt"),
    "too few": (lambda root: (root / "val_labels.txt").write_text("n01\n"), "has 1 labels for 3 pictures"),
    "three words": (lambda root: (root / "val_labels.txt").write_text("a b c\n" * 3), "line 1 is neither a class nor"),
    "other names": (
        lambda root: (root / "val_labels.txt").write_text("a n01\n"),
        "no label for 3 pictures, such as IL",
    ),
    "unknown": (lambda root: (root / "val_labels.txt").write_text("n01\nn77\nn01"), "classes that train lacks: n77"),
    "kit alone": (lambda root: (kit(root) / "meta.mat").unlink(), "numbers that only meta.mat explains"),
    "kit damaged": (lambda root: (kit(root) / "meta.mat").write_bytes(b"x" * 300), "meta.mat: no table 'synsets'"),
    "unknown number": (lambda root: kit(root, "2\n9\n1\n"), "has classes that .*meta.mat lacks: 9"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_labels_that_do_not_fit_are_refused(wrong, root):
    change, message = WRONG[wrong]
    change(root)
    with pytest.raises(ValueError, match=message):
        open_source("shards", "val", root)


def test_meta_mat_names_scipy_where_it_is_missing(root, monkeypatch):
    kit(root)
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(ImportError, match=r"castling-vit\[segmentation\]"):
        open_source("shards", "val", root)


def test_an_inner_archive_that_is_cut_off_is_named(root):
    inner = tar_bytes([("n01_1.JPEG", picture_bytes(1))])
    write_tar(root / "ILSVRC2012_img_train.tar", [("n01.tar", inner[:300]), ("n02.tar", inner)])
    with pytest.raises(ValueError, match=r"ILSVRC2012_img_train.tar/n01.tar is cut off"):
        open_source("shards", "train", root)


def test_members_that_cannot_be_meant_are_refused(root):
    inner = tar_bytes([("1.JPEG", picture_bytes(1)), ("1.JPEG", b""), ("2.JPEG", NoFile(tarfile.SYMTYPE))])
    write_tar(root / "ILSVRC2012_img_train.tar", [("n01.tar", inner)])
    with pytest.raises(ValueError, match=r"two members with one name: .*/n01.tar/1.JPEG; links .*/n01.tar/2.JPEG"):
        open_source("shards", "train", root)


def test_pretraining_needs_no_labels(root):
    (root / "val_labels.txt").unlink()
    train, val = (open_pictures(PretrainingData(source="shards", root=str(root)), split) for split in ("train", "val"))
    assert (len(train), len(val)) == (5, 3)
    assert val.name(0) == "val/ILSVRC2012_val_00000000.JPEG"
    (root / "ILSVRC2012_img_val.tar").unlink()
    assert len(open_pictures(PretrainingData(source="shards", root=str(root)), "train")) <= 5
