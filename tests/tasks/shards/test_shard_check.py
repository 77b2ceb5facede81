"""`castling data check` on archives: what is there, and everything that is wrong at once."""

import gzip
import tarfile

import pytest
from archive_files import NoFile, example, picture_bytes, write_imagenet, write_shards, write_tar

from castling.tasks import data_forms
from castling.tasks.data_check import CheckOptions, check_data


def check(root, **options):
    return check_data(root, "auto", data_forms(), CheckOptions(**options))


@pytest.fixture
def root(tmp_path):
    write_shards(tmp_path, "train", [0, 1, 1, 0, 1])
    write_shards(tmp_path, "val", [0, 1], start=50)
    return tmp_path


def test_clean_shards_are_counted(root):
    report = check(root, num_samples=2)
    assert (report.form, report.findings, len(report.samples)) == ("shards", [], 4)
    assert [(split.name, split.num_pictures, split.per_class) for split in report.splits] == [
        ("train", 5, {"0": 2, "1": 3}),
        ("val", 2, {"0": 1, "1": 1}),
    ]
    assert report.splits[0].picture_sizes["median"] == (12, 10)
    assert list(root.glob(".*")) == []  # a check leaves nothing behind


def test_imagenets_archives_are_counted(tmp_path):
    write_imagenet(tmp_path)
    report = check(tmp_path)
    assert (report.form, report.num_errors) == ("shards", 0)
    assert [split.per_class for split in report.splits] == [{"n01": 2, "n02": 3}, {"n01": 1, "n02": 2}]


def test_everything_that_is_wrong_is_found_at_once(root):
    members = [
        *example("0", 1, 0),
        *example("0", 2),
        *example("nameless", 3),
        ("bad.png", b"no picture"),
        ("bad.cls", b"1"),
        *example("../out", 4, 1),
        ("link.png", NoFile(tarfile.SYMTYPE)),
        *example("a.b", 5),
        ("alone.cls", b"1"),
    ]
    write_tar(root / "train-000000.tar", members)
    path = root / "train-000001.tar"
    path.write_bytes(path.read_bytes()[:300])
    write_tar(root / "val-000000.tar", [*example("1", 1, 0), *example("2", 9, 7)])
    found = {(one.level, one.split, one.kind.split(" (")[0]): one.first for one in check(root).findings}
    shard = "train-000000.tar"
    assert found["error", "train", "two pictures with one key"] == [f"{shard}/0.png"]
    assert found["error", "train", "names that lead out of the archive"] == [
        f"{shard}/../out.png",
        f"{shard}/../out.cls",
    ]
    assert found["error", "train", "links"] == [f"{shard}/link.png"]
    assert found["error", "train", "archives that cannot be read"][0].startswith("train-000001.tar is cut off")
    assert found["error", "train", "pictures without a label"] == [f"{shard}/nameless.png"]
    assert found["error", "train", "pictures that cannot be read"][0].startswith(f"{shard}/bad.png (UnidentifiedImage")
    assert found["error", "val", "classes that train lacks"] == ["7"]
    assert found["warning", "train", "labels without a picture"] == [f"{shard}/alone"]
    assert found["warning", "train", "pictures passed over, as a key ends at the first dot of a name"] == [
        f"{shard}/a.b.png"
    ]


def test_pictures_of_both_splits_are_found(root):
    write_tar(root / "val-000000.tar", [*example("x", 3, 0), *example("y", 50, 1)])
    found = {one.kind: one for one in check(root).findings}
    assert found["pictures in both"].first == ["train-000000.tar/0003.png = val-000000.tar/x.png"]


def test_labels_that_classes_txt_lacks_are_found(root):
    (root / "classes.txt").write_text("cat\n")
    found = {(one.split, one.kind): one.first for one in check(root).findings}
    assert found["train", "classes that classes.txt lacks"] == ["1"]


def test_many_pictures_are_looked_at_by_processes(root, monkeypatch):
    monkeypatch.setattr("castling.tasks.picture_check.FEW", 1)
    alone, together = check(root), check(root, workers=2)
    assert alone.to_json() == together.to_json()


def test_archives_that_cannot_be_used_at_all_are_said(tmp_path):
    (tmp_path / "train-0.tar.gz").write_bytes(gzip.compress(b"x"))
    with pytest.raises(ValueError, match="is compressed"):
        check(tmp_path)
    (tmp_path / "train-0.tar.gz").unlink()
    write_tar(tmp_path / "train-0.tar", [("readme.md", b"")])
    with pytest.raises(ValueError, match="no pictures in the archives of"):
        check(tmp_path)
    (tmp_path / "train-0.tar").write_bytes(picture_bytes(0))
    with pytest.raises(ValueError, match=r"no pictures in .*; archives that cannot be read: train-0.tar is cut off"):
        check(tmp_path)
    with pytest.raises(ValueError, match="'shards' has no settings; got mean"):
        check(tmp_path, settings={"mean": 1})
