import gzip
import json
import os
import pickle

import numpy as np
import pytest
from PIL import Image

from castling.tasks.picture_sources import open_source

CIFAR10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
FASHION = ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"]


def truncate(path, share=0.5):
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()


def rgb_pictures(count, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3), np.uint8)


def planes(pictures):
    return pictures.transpose(0, 3, 1, 2).reshape(len(pictures), 3072)


def cifar_batches():
    """Two pictures each, of the classes `number` and `number + 1`; batch 0 is the test batch."""
    for number in range(6):
        stem = f"data_batch_{number}" if number else "test_batch"
        yield stem, rgb_pictures(2, number), [number, number + 1]


def write_bin(root):
    for stem, pictures, targets in cifar_batches():
        (root / f"{stem}.bin").write_bytes(np.c_[np.array(targets, np.uint8), planes(pictures)].tobytes())


def write_pickles(root):
    for stem, pictures, targets in cifar_batches():
        (root / stem).write_bytes(pickle.dumps({b"data": planes(pictures), b"labels": targets}, protocol=2))


def write_sheets(root, spelling="lables"):
    labels = {"train": [], "test": []}
    for stem, pictures, targets in cifar_batches():
        Image.fromarray(pictures.reshape(2, 1024, 3)).save(root / f"{stem}.png")
        labels["test" if stem == "test_batch" else "train"] += targets
    for prefix, targets in labels.items():
        (root / f"{prefix}_{spelling}.json").write_text(json.dumps(targets))


@pytest.fixture
def mnist(tmp_path):
    root = tmp_path / "mnist"
    root.mkdir()
    for prefix, targets in {"train": [0, 1, 2, 1], "t10k": [2, 0, 3]}.items():
        pictures = np.arange(len(targets) * 20, dtype=np.uint8).reshape(-1, 5, 4)
        (root / f"{prefix}-images-idx3-ubyte").write_bytes(idx(pictures))
        (root / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(np.array(targets, np.uint8)))
    return root


def test_idx_reads_both_splits(mnist):
    train, val = open_source("idx", "train", mnist), open_source("idx", "val", mnist)
    picture, target = val.read(1)
    assert (len(train), len(val), picture.mode, picture.size, target) == (4, 3, "L", (4, 5), 0)
    assert np.asarray(picture)[0].tolist() == [20, 21, 22, 23]
    assert train.labels == val.labels == ["0", "1", "2", "3"]
    assert val.name(1) == "val/1"


@pytest.mark.parametrize("suffix", [".gz", ""])
def test_idx_reads_gzip_by_content(mnist, suffix):
    for path in list(mnist.iterdir()):
        data = gzip.compress(path.read_bytes())
        path.unlink()
        (mnist / f"{path.name}{suffix}").write_bytes(data)
    assert len(open_source("idx", "train", mnist)) == 4


def test_idx_labels_of_a_clothes_folder(mnist):
    root = mnist.rename(mnist.with_name("FashionMNIST"))
    assert open_source("idx", "train", root).labels == FASHION


def test_idx_labels_from_a_file(mnist):
    (mnist / "labels.txt").write_text("ä\nb\n\nc\nd\n", encoding="utf-8")
    assert open_source("idx", "val", mnist).labels == ["ä", "b", "c", "d"]
    (mnist / "labels.txt").write_text("a\nb\nc\n")
    with pytest.raises(ValueError, match="labels from 0 to 3, but 3 class names"):
        open_source("idx", "val", mnist)


def test_idx_bad_magic_number_names_the_file(mnist):
    path = mnist / "train-images-idx3-ubyte"
    path.write_bytes(bytes([0, 0, 8, 1]) + path.read_bytes()[4:])
    with pytest.raises(ValueError, match="train-images-idx3-ubyte: magic number '00000801' is not '00000803'"):
        open_source("idx", "train", mnist)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.9])
def test_truncated_idx_names_the_file(mnist, share):
    truncate(mnist / "train-images-idx3-ubyte", share)
    with pytest.raises(ValueError, match="train-images-idx3-ubyte"):
        open_source("idx", "train", mnist)


def test_truncated_gzip_names_the_file(mnist):
    path = mnist / "t10k-images-idx3-ubyte"
    path.write_bytes(gzip.compress(path.read_bytes())[:-20])
    with pytest.raises(ValueError, match="t10k-images-idx3-ubyte"):
        open_source("idx", "val", mnist)


def test_idx_counts_must_agree(mnist):
    (mnist / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(3, np.uint8)))
    with pytest.raises(ValueError, match="train-labels-idx1-ubyte: 3 labels for 4 pictures"):
        open_source("idx", "train", mnist)


def test_idx_missing_file_is_named(mnist):
    (mnist / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(FileNotFoundError, match="t10k-labels-idx1-ubyte nor"):
        open_source("idx", "val", mnist)


def test_idx_without_pictures_is_an_error(mnist):
    (mnist / "train-images-idx3-ubyte").write_bytes(idx(np.zeros((0, 5, 4), np.uint8)))
    (mnist / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(0, np.uint8)))
    with pytest.raises(ValueError, match="no pictures"):
        open_source("idx", "train", mnist)


@pytest.mark.parametrize("form", ["bin", "python", "sheets"])
@pytest.mark.parametrize("split", ["train", "val"])
def test_cifar_reads_the_same_from_each_form(tmp_path, form, split):
    {"bin": write_bin, "python": write_pickles, "sheets": write_sheets}[form](tmp_path)
    source = open_source("cifar", split, tmp_path)
    expected = [
        (rgb_pictures(2, seed)[i], seed + i) for seed in ([0] if split == "val" else range(1, 6)) for i in (0, 1)
    ]
    assert len(source) == len(expected)
    for index, (pixels, target) in enumerate(expected):
        picture, read_target = source.read(index)
        assert picture.mode == "RGB"
        assert np.array_equal(np.asarray(picture), pixels)
        assert read_target == target
    assert source.labels == CIFAR10
    assert source.name(1) == f"{split}/1"


@pytest.mark.parametrize(
    ("write", "name"), [(write_bin, "cifar-10-batches-bin"), (write_pickles, "cifar-10-batches-py")]
)
def test_cifar_in_its_archive_folder(tmp_path, write, name):
    (tmp_path / name).mkdir()
    write(tmp_path / name)
    assert len(open_source("cifar", "train", tmp_path)) == 10


def test_cifar_labels_from_meta_files(tmp_path):
    write_pickles(tmp_path)
    names = [f"class {number}" for number in range(7)]
    (tmp_path / "batches.meta").write_bytes(pickle.dumps({b"label_names": [name.encode() for name in names]}, 2))
    assert open_source("cifar", "train", tmp_path).labels == names
    (tmp_path / "batches.meta.txt").write_text("\n".join(names[::-1]) + "\n\n")
    assert open_source("cifar", "train", tmp_path).labels == names[::-1]


def test_cifar100_pickles(tmp_path):
    batch = {b"data": planes(rgb_pictures(2)), b"fine_labels": [99, 0], b"coarse_labels": [1, 2]}
    (tmp_path / "test").write_bytes(pickle.dumps(batch, 2))
    (tmp_path / "meta").write_bytes(pickle.dumps({b"fine_label_names": [b"n%d" % i for i in range(100)]}, 2))
    source = open_source("cifar", "val", tmp_path)
    assert source.labels[source.read(0)[1]] == "n99"


def python_2_string(value):
    return b"T" + len(value).to_bytes(4, "little") + value


def test_pickle_of_python_2_is_read(tmp_path):
    # As the published batches: numpy's old module, and byte strings, which Python 3 no longer writes.
    pixels = rgb_pictures(1)
    parts = [
        b"\x80\x02}(", python_2_string(b"data"),
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t", python_2_string(b"b"), b"tR",
        b"(K\x01(K\x01M\x00\x0ct",  # version 1, shape (1, 3072)
        b"cnumpy\ndtype\n(", python_2_string(b"u1"), b"K\x00K\x01tR",
        b"(K\x03", python_2_string(b"|"), b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb",
        b"\x89", python_2_string(planes(pixels).tobytes()), b"tb",
        python_2_string(b"labels"), b"]K\x04au.",
    ]  # fmt: skip
    (tmp_path / "test_batch").write_bytes(b"".join(parts))
    picture, target = open_source("cifar", "val", tmp_path).read(0)
    assert np.array_equal(np.asarray(picture), pixels[0])
    assert target == 4


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("name", ["test_batch", "batches.meta"])
def test_malicious_pickle_is_refused_and_not_run(tmp_path, name):
    write_pickles(tmp_path)
    (tmp_path / name).write_bytes(pickle.dumps({b"data": Malicious(tmp_path / "made")}, 2))
    with pytest.raises(ValueError, match=rf"{name}: refused to load \w+\.mkdir"):
        open_source("cifar", "val", tmp_path)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("content", [b"", b"no pickle", pickle.dumps([1, 2]), pickle.dumps({b"data": [1]})])
def test_file_that_is_no_batch_is_named(tmp_path, content):
    (tmp_path / "test_batch").write_bytes(content)
    with pytest.raises(ValueError, match="test_batch"):
        open_source("cifar", "val", tmp_path)


def test_truncated_bin_is_named(tmp_path):
    write_bin(tmp_path)
    truncate(tmp_path / "data_batch_3.bin", 0.9)
    with pytest.raises(ValueError, match=r"data_batch_3\.bin"):
        open_source("cifar", "train", tmp_path)


def test_missing_batch_is_named(tmp_path):
    write_bin(tmp_path)
    (tmp_path / "data_batch_4.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"data_batch_4\.bin missing"):
        open_source("cifar", "train", tmp_path)


def test_no_cifar_says_what_was_expected(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"expected data_batch_1\.bin, data_batch_1 or data_batch_1\.png"):
        open_source("cifar", "train", tmp_path)


def test_sheets_with_labels_spelled_right(tmp_path):
    write_sheets(tmp_path, spelling="labels")
    assert open_source("cifar", "val", tmp_path).read(1)[1] == 1


def test_bad_sheets_are_named(tmp_path):
    write_sheets(tmp_path)
    (tmp_path / "train_lables.json").write_text("[1, 2]")
    with pytest.raises(ValueError, match=r"train_lables\.json: 2 labels for 10 pictures"):
        open_source("cifar", "train", tmp_path)
    (tmp_path / "train_lables.json").write_text("[1,")
    with pytest.raises(ValueError, match=r"train_lables\.json"):
        open_source("cifar", "train", tmp_path)
    Image.new("RGB", (100, 2)).save(tmp_path / "data_batch_2.png")
    with pytest.raises(ValueError, match=r"data_batch_2\.png: 100 pixels wide"):
        open_source("cifar", "train", tmp_path)
    truncate(tmp_path / "test_batch.png")
    with pytest.raises(ValueError, match=r"test_batch\.png"):
        open_source("cifar", "val", tmp_path)


def test_array_sources_can_be_sent_to_workers(mnist, tmp_path):
    write_bin(tmp_path)
    for source in (open_source("idx", "val", mnist), open_source("cifar", "val", tmp_path)):
        copied = pickle.loads(pickle.dumps(source))
        assert copied.labels == source.labels
        assert copied.name(0) == source.name(0)
        assert copied.read(0)[0].tobytes() == source.read(0)[0].tobytes()
