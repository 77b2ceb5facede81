"""What a check of data has of its own, whatever the task."""

from itertools import product

import numpy as np
import pytest
from PIL import Image

from castling.tasks import data_forms
from castling.tasks.data_check import CheckOptions, DataForm, DataReport, check_data, finding
from castling.tasks.picture_check import duplicate_findings, look, look_at, picture_findings, sizes_of


def save(path, seed, size=(6, 5), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)
    return path


def form(name, fits):
    def check(root, options):
        return DataReport(root, name, "things", [], [])

    return DataForm(name, f"{name}/*", lambda root: fits, check)


@pytest.fixture
def classes(tmp_path):
    for seed, (split, label, number) in enumerate(product(("train", "val"), ("cat", "dog"), range(3))):
        save(tmp_path / split / label / f"{number}.png", seed)
    return tmp_path


def test_the_form_that_fits_is_taken_or_the_one_that_is_named(tmp_path):
    forms = [form("left", False), form("right", True)]
    assert check_data(tmp_path, "auto", forms).form == "right"
    assert check_data(tmp_path, "left", forms).form == "left"


def test_forms_that_fit_no_folder_or_too_many_are_named(tmp_path):
    (tmp_path / "odd").mkdir()
    with pytest.raises(ValueError, match=r"no data recognised in .*, which has odd; looked for a: a/\*; b: b/\*"):
        check_data(tmp_path, "auto", [form("a", False), form("b", False)])
    with pytest.raises(ValueError, match="could be a or b: say which by --format"):
        check_data(tmp_path, "auto", [form("a", True), form("b", True)])
    with pytest.raises(ValueError, match=r"unknown format 'c'.*Legal: 'auto', 'a'"):
        check_data(tmp_path, "c", [form("a", True)])
    with pytest.raises(FileNotFoundError, match="no folder"):
        check_data(tmp_path / "none", "auto", [form("a", True)])


def test_findings_count_all_and_name_the_first():
    assert finding("error", "things", "train", []) == []
    (found,) = finding("error", "things", "train", [str(number) for number in range(1200)])
    assert found.line == "error: train: 1,200 things: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 1190 more"


def test_pictures_are_decoded_to_the_end(tmp_path):
    whole = save(tmp_path / "a.png", 0, (90, 80))
    cut = tmp_path / "b.png"
    cut.write_bytes(whole.read_bytes()[:-800])
    looks = [look(whole), look(cut), look(tmp_path / "none.png")]
    assert [seen.size for seen in looks] == [(90, 80), (0, 0), (0, 0)]
    found = {one.kind: one.first for one in picture_findings("train", ["a", "b", "none"], looks)}
    assert found["pictures that are listed and not there"] == ["none"]
    assert found["pictures that cannot be read"][0].startswith("b (OSError")


def test_the_same_pixels_are_duplicates_and_others_are_not(tmp_path):
    paths = [save(tmp_path / name, 0) for name in ("a.png", "b.bmp")] + [save(tmp_path / "c.png", 1)]
    paths.append(save(tmp_path / "d.png", 0, (5, 6)))  # the same bytes in another shape
    looks = [look(path) for path in paths]
    assert len({seen.digest for seen in looks}) == 3
    (found,) = duplicate_findings({"train": (["a", "b", "c", "d"], looks)})
    assert (found.level, found.first) == ("warning", ["b = a"])
    (found,) = duplicate_findings(
        {"train": (["a"], looks[:1]), "val": (["c"], looks[2:3]), "test": (["b"], looks[1:2])}
    )
    assert (found.level, found.split, found.first) == ("error", "train and test", ["a = b"])


def test_pictures_that_cannot_be_read_are_no_duplicates(tmp_path):
    looks = [look(tmp_path / "none"), look(tmp_path / "neither")]
    assert duplicate_findings({"train": (["a", "b"], looks)}) == []
    assert sizes_of(looks) == {}


def test_processes_find_the_same_in_the_same_order(tmp_path, monkeypatch):
    monkeypatch.setattr("castling.tasks.picture_check.FEW", 1)
    paths = [save(tmp_path / f"{number}.png", number, (4 + number, 5)) for number in range(20)]
    told = []
    found = look_at(paths, CheckOptions(workers=2, on_picture=lambda done, total: told.append((done, total))))
    assert found == [look(path) for path in paths]
    assert told == [(number, 20) for number in range(1, 21)]


def test_folders_of_classes_are_checked_by_the_same_call(classes):
    report = check_data(classes, "auto", data_forms(), CheckOptions(num_samples=2))
    assert (report.form, report.num_errors) == ("folder", 0)
    assert [split.per_class for split in report.splits] == [{"cat": 3, "dog": 3}] * 2
    assert len(report.samples) == 4


def test_faults_of_class_folders_are_found(classes):
    save(classes / "val" / "fox" / "0.png", 5000)
    (classes / "train" / "owl").mkdir()
    (classes / "val" / "cat" / "0.png").write_bytes((classes / "train" / "dog" / "1.png").read_bytes())
    (classes / "train" / "cat" / "2.png").write_text("no picture")
    found = {(one.split, one.kind): one for one in check_data(classes, "auto", data_forms()).findings}
    assert found["val", "classes that train lacks"].first == ["fox"]
    assert found["train", "classes without pictures"].first == ["owl"]
    assert found["train and val", "pictures in both"].first == ["train/dog/1.png = val/cat/0.png"]
    assert found["train", "pictures that cannot be read"].first[0].startswith("train/cat/2.png")
    with pytest.raises(ValueError, match="'folder' has no settings; got mean"):
        check_data(classes, "auto", data_forms(), CheckOptions({"mean": 1}))
