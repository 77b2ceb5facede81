"""The index of archives: made once, mapped, and made anew when it is old or damaged."""

import json
import logging
import os
import pickle
import random

import numpy as np
import pytest
from archive_files import example, write_shards, write_tar
from safetensors.numpy import load_file

from castling.tasks.shards import kept
from castling.tasks.shards.index import map_index
from castling.tasks.shards.kept import open_index
from castling.tasks.shards.webdataset import scan_shards

ARRAYS = ("group", "offset", "size", "label", "name_end", "names", "text_end", "texts")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "castling"


@pytest.fixture
def root(tmp_path):
    write_shards(tmp_path / "data", "train", [3, 1, 4, 1, 5, 9, 2, 6, 5])
    return tmp_path / "data"


class Opened:
    """Opens the index of a folder, and counts how often its archives were walked."""

    def __init__(self, root):
        self.root, self.walked = root, 0

    def __call__(self):
        paths = sorted(self.root.glob("*.tar"))

        def scan(builder):
            self.walked += 1
            scan_shards(self.root, paths, builder)

        return open_index(self.root, "train", paths, scan)


def plain(index):
    arrays = {name: getattr(index, name).tolist() for name in ARRAYS}
    return arrays, index.groups, index.files, [index.name(row) for row in range(len(index))]


def test_archives_are_walked_once(root):
    opened = Opened(root)
    first, second = opened(), opened()
    assert opened.walked == 1
    assert plain(first) == plain(second)
    assert [first.name(row) for row in (0, 5, 8)] == [
        "train-000000.tar/0000.png",
        "train-000001.tar/0005.png",
        "train-000002.tar/0008.png",
    ]
    assert [first.label_texts()[number] for number in first.label] == list("314159265")


def test_arrays_are_mapped_not_read(root):
    index = Opened(root)()
    for name in ARRAYS:
        base = getattr(index, name)
        while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
            base = base.base
        assert isinstance(base, np.memmap)
        assert base.mode == "r"


def test_another_process_maps_the_same_file_instead_of_a_copy(root):
    write_shards(root, "train", list(range(200)), per_shard=50)
    index = Opened(root)()
    sent = pickle.dumps(index)
    assert len(sent) < 600
    assert plain(pickle.loads(sent)) == plain(index)
    content = bytearray(index.path.read_bytes())
    content[-1] ^= 1
    index.path.write_bytes(content)
    with pytest.raises(ValueError, match="checksum"):
        pickle.loads(sent)


def test_the_file_is_one_of_safetensors(root):
    index = Opened(root)()
    assert index.path == root / ".castling-train.safetensors"
    loaded = load_file(index.path)
    assert {name: loaded[name].tolist() for name in ARRAYS} == plain(index)[0]


def touch(root):
    path = root / "train-000001.tar"
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1))


def replace(root):
    path, time = root / "train-000000.tar", (root / "train-000000.tar").stat().st_mtime_ns
    write_tar(path, [*example("other", 77, 8), ("large.npy", bytes(20_000))])
    os.utime(path, ns=(time, time))  # of another size alone


CHANGES = {
    "time": touch,
    "size": replace,
    "one more": lambda root: write_tar(root / "train-000009.tar", example("a", 1, 1)),
    "one less": lambda root: (root / "train-000002.tar").unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_size_time_or_number_of_archives_makes_it_old(change, root):
    opened = Opened(root)
    opened()
    CHANGES[change](root)
    index = opened()
    assert opened.walked == 2
    assert (index.name(0) == "train-000000.tar/other.png") == (change == "size")
    assert len(index) == {"time": 9, "size": 6, "one more": 10, "one less": 8}[change]
    opened()
    assert opened.walked == 2


def test_a_damaged_index_is_made_anew_with_a_word(root, caplog):
    opened = Opened(root)
    whole = opened().path.read_bytes()
    path, rng, right = root / ".castling-train.safetensors", random.Random(0), plain(opened())
    for number in range(80):
        content = bytearray(whole)
        if number % 3:
            place = rng.randrange(len(content))
            content[place] ^= 1 << rng.randrange(8)
        else:
            del content[rng.randrange(len(content)) :]
        path.write_bytes(content)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert plain(opened()) == right
        assert "is damaged" in caplog.text
    assert opened.walked == 81
    assert list(root.glob("*.part")) == []


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff" * 9, (2**62).to_bytes(8, "little"), b"\2" + bytes(7) + b"[]"])
def test_what_is_no_index_is_made_anew(content, root):
    (root / ".castling-train.safetensors").write_bytes(content)
    assert len(Opened(root)()) == 9


def test_an_index_of_another_form_is_made_anew(root):
    opened = Opened(root)
    path = opened().path
    content = path.read_bytes()
    path.write_bytes(content.replace(b"castling shards 1", b"castling shards 0"))
    opened()
    assert opened.walked == 2


def refuse(monkeypatch, *roots):
    """Let these folders be read-only, which they are not for the user who may do everything."""
    write = kept.write_index

    def refusing(path, index):
        if any(root in path.parents for root in roots):
            raise PermissionError(13, "Permission denied", str(path))
        write(path, index)

    monkeypatch.setattr(kept, "write_index", refusing)


def test_where_the_archives_cannot_be_written_the_index_is_in_the_cache(root, cache, monkeypatch):
    refuse(monkeypatch, root)
    opened = Opened(root)
    assert opened().path.parent == cache
    opened()
    assert opened.walked == 1
    assert list(root.glob(".*")) == []


def test_where_nothing_can_be_written_it_stays_in_memory(root, cache, monkeypatch):
    right = plain(Opened(root)())
    (root / ".castling-train.safetensors").unlink()
    refuse(monkeypatch, root, cache)
    opened = Opened(root)
    index = opened()
    assert index.path is None
    assert plain(index) == plain(pickle.loads(pickle.dumps(index))) == right


def test_a_disk_that_fills_up_leaves_nothing(root, cache, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert Opened(root)().path is None
    assert list(root.glob(".*")) == []
    assert list(cache.iterdir()) == []


def test_an_index_with_errors_is_not_kept(root):
    write_tar(root / "train-000003.tar", [*example("a", 1, 1), *example("a", 2)])
    for _ in range(2):
        with pytest.raises(ValueError, match=r"^two pictures with one key: train-000003.tar/a.png$"):
            Opened(root)()
    assert list(root.glob(".*")) == []


def test_its_header_says_what_it_was_made_from(root):
    index = Opened(root)()
    content = index.path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    about = json.loads(header["__metadata__"]["about"])
    seen = (root / "train-000000.tar").stat()
    assert about["files"][0] == ["train-000000.tar", seen.st_size, seen.st_mtime_ns]
    assert map_index(index.path, root).files == index.files
