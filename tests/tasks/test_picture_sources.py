import logging
import os
import pickle
import sys

import numpy as np
import pytest
from PIL import Image, ImageFile

from castling.tasks.picture_sources import open_source


def save_picture(path, value=0, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 6), (value, 0, 0)).save(path, **options)


@pytest.fixture
def folder(tmp_path):
    for name in ("train/dog/b.jpg", "train/dog/a.PNG", "train/cat/deep/er/c.jpeg", "val/dog/d.jpg"):
        save_picture(tmp_path / name)
    return tmp_path


def test_digits_are_split_by_class():
    train, val = open_source("digits", "train"), open_source("digits", "val")
    assert (len(train), len(val)) == (1442, 355)
    assert train.labels == val.labels == list("0123456789")
    assert np.bincount(val.targets).min() >= 34
    assert train.name(17) == "train/17"
    # The two splits together are the dataset, and no picture is in both.
    sklearn_datasets = pytest.importorskip("sklearn.datasets")
    everything = sorted(image.tobytes() for image in np.rint(sklearn_datasets.load_digits().images * 255 / 16))
    both = np.concatenate([train.pictures, val.pictures]).astype(float)
    assert sorted(image.tobytes() for image in both) == everything


def test_digits_are_grey_pictures_of_the_full_range():
    picture, target = open_source("digits", "train").read(0)
    assert (picture.mode, picture.size, target) == ("L", (8, 8), 0)
    assert open_source("digits", "train").pictures.max() == 255


def test_digits_name_their_extra(monkeypatch):
    class NotInstalled:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name == "sklearn":
                raise ModuleNotFoundError(name=name)

    for name in [name for name in sys.modules if name.partition(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [NotInstalled, *sys.meta_path])
    with pytest.raises(ImportError, match=r"castling-vit\[demo\]"):
        open_source("digits", "train")


def test_folder_is_sorted_and_named_by_relative_path(folder):
    source = open_source("folder", "train", str(folder))
    assert source.labels == ["cat", "dog"]
    assert [source.name(i) for i in range(3)] == ["train/cat/deep/er/c.jpeg", "train/dog/a.PNG", "train/dog/b.jpg"]
    assert [source.read(i)[1] for i in range(len(source))] == [0, 1, 1]


def test_folder_takes_the_classes_of_train_for_val(folder):
    source = open_source("folder", "val", folder)
    assert (len(source), source.labels, source.read(0)[1]) == (1, ["cat", "dog"], 1)


@pytest.mark.parametrize("name", ["test", "validation"])
def test_folder_accepts_other_names_for_val(folder, name):
    (folder / "val").rename(folder / name)
    assert open_source("folder", "val", folder).name(0) == f"{name}/dog/d.jpg"


def test_folder_passes_over_other_files(folder):
    for name in ("notes.txt", ".hidden.jpg"):
        (folder / "train/cat" / name).write_text("no picture")
    save_picture(folder / "train/.ipynb_checkpoints/a.jpg")
    save_picture(folder / "train/cat/.ipynb_checkpoints/a.jpg")
    assert len(open_source("folder", "train", folder)) == 3
    assert open_source("folder", "train", folder).labels == ["cat", "dog"]


def test_folder_follows_links(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    save_picture(elsewhere / "x.jpg")
    os.symlink(elsewhere, folder / "train/emu", target_is_directory=True)
    assert open_source("folder", "train", folder).name(3) == "train/emu/x.jpg"


def test_folder_keeps_the_mode_of_a_picture(folder):
    Image.new("LA", (3, 2)).save(folder / "train/cat/0.png")
    picture, _ = open_source("folder", "train", folder).read(0)
    assert (picture.mode, picture.size) == ("LA", (3, 2))


@pytest.mark.parametrize(("name", "kind"), [("0.jpg", "PNG"), ("0.png", "JPEG")])
def test_picture_with_the_ending_of_another_format_is_read(folder, name, kind):
    save_picture(folder / "train/cat" / name, value=9, format=kind)
    picture, target = open_source("folder", "train", folder).read(0)
    assert picture.getpixel((0, 0)) == pytest.approx((9, 0, 0), abs=2)  # JPEG's shades are near
    assert (picture.format, target) == (kind, 0)


def test_picture_with_an_ending_that_is_no_pictures_is_passed_over(folder):
    for name in ("0.dat", "0.jpg.bak", "0"):
        save_picture(folder / "train/cat" / name, format="PNG")
    source = open_source("folder", "train", folder)
    assert (len(source), source.name(0)) == (3, "train/cat/deep/er/c.jpeg")


@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize("name", ["0.jpg", "0.png"])
def test_truncated_picture_raises_on_read(folder, monkeypatch, name, lenient):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", lenient)
    path = folder / "train/cat" / name
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (200, 200, 3), np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    source = open_source("folder", "train", folder)
    with pytest.raises((OSError, SyntaxError, ValueError)):
        source.read(0)
    assert ImageFile.LOAD_TRUNCATED_IMAGES is lenient


@pytest.mark.parametrize("content", ["no picture at all", ""])
def test_text_called_jpg_raises_on_read(folder, content):
    (folder / "train/cat/0.jpg").write_text(content)
    source = open_source("folder", "train", folder)
    with pytest.raises(OSError, match=r"0\.jpg"):
        source.read(0)


def test_empty_class_folder_is_warned_about(folder, caplog):
    (folder / "train/emu").mkdir()
    with caplog.at_level(logging.WARNING):
        source = open_source("folder", "train", folder)
    assert source.labels == ["cat", "dog", "emu"]
    assert "emu" in caplog.text
    assert "cat" not in caplog.records[0].getMessage().rpartition(":")[2]


def test_class_without_validation_pictures_is_warned_about(folder, caplog):
    with caplog.at_level(logging.WARNING):
        open_source("folder", "val", folder)
    assert f"no pictures in {folder}/val of these classes, 1 of 2: cat" in caplog.text


def test_classes_that_differ_in_capitals_are_warned_about(folder, caplog):
    save_picture(folder / "train/Dog/e.jpg")
    with caplog.at_level(logging.WARNING):
        source = open_source("folder", "train", folder)
    assert source.labels == ["Dog", "cat", "dog"]
    assert "differ in capital letters alone: Dog, dog" in caplog.text


def test_val_class_that_train_lacks_is_an_error(folder):
    save_picture(folder / "val/emu/e.jpg")
    with pytest.raises(ValueError, match=rf"{folder}/val has classes that {folder}/train lacks: emu; there: cat, dog"):
        open_source("folder", "val", folder)


def test_missing_root_is_named(tmp_path):
    for kind in ("folder", "idx", "cifar"):
        with pytest.raises(FileNotFoundError, match="nowhere"):
            open_source(kind, "train", tmp_path / "nowhere")
        with pytest.raises(ValueError, match=f"'{kind}' needs a root"):
            open_source(kind, "train")


def test_no_pictures_says_what_was_expected_and_found(tmp_path):
    save_picture(tmp_path / "photos/x.jpg")
    with pytest.raises(ValueError, match=r"expected .*train/CLASS/.*\.jpeg.*found photos"):
        open_source("folder", "train", tmp_path)
    (tmp_path / "train/cat").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"no pictures in .*train: .*found cat"):
        open_source("folder", "train", tmp_path)


def test_val_without_class_folders_says_so(folder):
    (folder / "val/dog/d.jpg").rename(folder / "val/d.jpg")
    (folder / "val/dog").rmdir()
    with pytest.raises(ValueError, match=r"expected .*val/CLASS/.*found d\.jpg"):
        open_source("folder", "val", folder)


def test_folder_without_val_says_so(folder):
    (folder / "val").rename(folder / "other")
    with pytest.raises(ValueError, match=r"no pictures in .*val: .*found other, train"):
        open_source("folder", "val", folder)


@pytest.fixture
def saved(tmp_path):
    """Writes splits, each a list of labels, with `save_to_disk`."""
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()

    def save(label_feature=None, image_feature=None, **splits):
        features = {"image": image_feature or datasets.Image(), "label": label_feature or datasets.Value("string")}
        made = {
            split: datasets.Dataset.from_dict(
                {"image": [Image.new("L", (3, 2), i) for i in range(len(labels))], "label": labels},
                features=datasets.Features(features),
            )
            for split, labels in splits.items()
        }
        datasets.DatasetDict(made).save_to_disk(str(tmp_path / "saved"))
        return str(tmp_path / "saved")

    return save


def test_huggingface_takes_names_from_the_label_column(saved):
    datasets = pytest.importorskip("datasets")
    name = saved(datasets.ClassLabel(names=["cat", "dog"]), train=[1, 0, 1], validation=[1], test=[0, 0])
    source = open_source("huggingface", "train", name=name)
    picture, target = source.read(2)
    assert (len(source), source.labels, target, source.name(2)) == (3, ["cat", "dog"], 1, "train/2")
    assert (picture.mode, picture.size, picture.getpixel((0, 0))) == ("L", (3, 2), 2)
    assert len(open_source("huggingface", "val", name=name)) == 1


def test_huggingface_sorts_plain_labels(saved):
    name = saved(train=["dog", "cat", "emu"], test=["emu"])
    assert open_source("huggingface", "train", name=name).labels == ["cat", "dog", "emu"]
    assert open_source("huggingface", "val", name=name).read(0)[1] == 2


def test_huggingface_reads_a_single_saved_split_and_undecoded_pictures(saved):
    datasets = pytest.importorskip("datasets")
    name = saved(image_feature=datasets.Image(decode=False), train=["a", "b"])
    assert open_source("huggingface", "train", name=f"{name}/train").read(1)[0].size == (3, 2)


def test_huggingface_wrong_column_lists_the_columns(saved):
    name = saved(train=["a"])
    for columns in ({"image_column": "img"}, {"label_column": "img"}, {"image_column": "label"}):
        with pytest.raises(
            ValueError, match=r"no column '(img|label)' of type .* there: 'image' \(Image\), 'label' \(V"
        ):
            open_source("huggingface", "train", name=name, **columns)


def test_huggingface_missing_split_lists_the_splits(saved):
    with pytest.raises(ValueError, match=r"no split 'validation' or 'val' or 'test' in .* there: train"):
        open_source("huggingface", "val", name=saved(train=["a"]))


def test_huggingface_unlabelled_split_is_an_error(saved):
    datasets = pytest.importorskip("datasets")
    name = saved(datasets.ClassLabel(names=["cat", "dog"]), train=[1, 0], test=[-1, -1])
    with pytest.raises(ValueError, match=r"unknown labels in split 'test' of .*: \[-1\]; legal: cat, dog"):
        open_source("huggingface", "val", name=name)


@pytest.fixture
def hub(monkeypatch):
    """Puts splits on a hub as `someone/pets`; gives the names that were asked for."""
    datasets = pytest.importorskip("datasets")

    def publish(image_column="image", label_column="label", **splits):
        labels = datasets.ClassLabel(names=["cat", "dog"])
        features = datasets.Features({image_column: datasets.Image(), label_column: labels})
        made = {}
        for split, targets in splits.items():
            pictures = [Image.new("RGB", (5, 4), (10 * place, 0, 0)) for place in range(len(targets))]
            values = {image_column: pictures, label_column: targets}
            made[split] = datasets.Dataset.from_dict(values, features=features)
        asked = []

        def load_dataset(name):
            asked.append(name)
            if name != "someone/pets":
                raise FileNotFoundError(f"there is no dataset {name} on this hub")
            return datasets.DatasetDict(made)

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        return asked

    return publish


@pytest.mark.parametrize("held_out", ["validation", "val", "test"])
def test_huggingface_reads_a_dataset_by_its_name(hub, held_out):
    asked = hub(train=[1, 0, 1], **{held_out: [0]})
    train = open_source("huggingface", "train", name="someone/pets")
    val = open_source("huggingface", "val", name="someone/pets")
    assert asked == ["someone/pets", "someone/pets"]
    assert (len(train), len(val), train.labels, val.labels) == (3, 1, ["cat", "dog"], ["cat", "dog"])
    picture, target = train.read(2)
    assert (picture.mode, picture.size, picture.getpixel((0, 0)), target) == ("RGB", (5, 4), (20, 0, 0), 1)
    assert [train.read(index)[1] for index in range(3)] == [1, 0, 1]
    assert (train.name(2), val.name(0), val.read(0)[1]) == ("train/2", "val/0", 0)


def test_huggingface_reads_the_named_columns_of_a_dataset_by_its_name(hub):
    hub(image_column="img", label_column="kind", train=[1, 0])
    with pytest.raises(ValueError, match=r"no column 'image' of type Image in 'someone/pets'; there: 'img' \(Image\)"):
        open_source("huggingface", "train", name="someone/pets")
    source = open_source("huggingface", "train", name="someone/pets", image_column="img", label_column="kind")
    assert source.read(1)[1] == 0


def test_huggingface_name_that_the_hub_does_not_know_is_its_error(hub, tmp_path):
    asked = hub(train=[0])
    (tmp_path / "folder").mkdir()  # that save_to_disk did not write
    for name in ("someone/pats", str(tmp_path / "folder")):
        with pytest.raises(FileNotFoundError, match="on this hub"):
            open_source("huggingface", "train", name=name)
    assert asked == ["someone/pats", str(tmp_path / "folder")]


def test_huggingface_picture_that_is_missing_or_damaged_raises_on_read(hub, monkeypatch):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat"])})
    rows = {"image": [None, {"bytes": b"no picture", "path": None}], "label": [0, 0]}
    made = datasets.DatasetDict({"train": datasets.Dataset.from_dict(rows, features=features)})
    monkeypatch.setattr(datasets, "load_dataset", lambda name: made)
    source = open_source("huggingface", "train", name="someone/pets")
    with pytest.raises(ValueError, match="train/0 has no picture in column 'image'"):
        source.read(0)
    with pytest.raises(OSError, match="cannot identify image file"):
        source.read(1)


def test_huggingface_needs_a_name_and_its_extra(monkeypatch):
    with pytest.raises(ValueError, match="'huggingface' needs a name"):
        open_source("huggingface", "train")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"castling-vit\[hub\]"):
        open_source("huggingface", "train", name="mnist")


def test_sources_can_be_sent_to_workers(folder, saved):
    sources = [
        open_source("folder", "val", folder),
        open_source("digits", "val"),
        open_source("huggingface", "train", name=saved(train=["a"])),
    ]
    for source in sources:
        copied = pickle.loads(pickle.dumps(source))
        assert copied.labels == source.labels
        assert copied.name(0) == source.name(0)
        assert copied.read(0)[0].tobytes() == source.read(0)[0].tobytes()


def test_unknown_kind_and_split_list_the_legal_ones():
    with pytest.raises(ValueError, match="unknown source 'folders': did you mean 'folder'"):
        open_source("folders", "train")
    with pytest.raises(ValueError, match=r"unknown split 'valid'.*'train', 'val'"):
        open_source("digits", "valid")
