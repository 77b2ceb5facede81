"""Sources packed into shards: the same pictures with the same classes, whole or not there."""

import os
import struct
import tarfile

import numpy as np
import pytest
from archive_files import example, picture_bytes, write_imagenet, write_shards, write_tar

from castling.cli.main import main
from castling.tasks.picture_sources import open_source
from castling.tasks.shards.writer import PackOptions, pack_sources


@pytest.fixture
def folder(tmp_path):
    """Seven pictures to train on, among them names that a key cannot have, and two to evaluate."""
    names = ["cat/a.jpg", "cat/a.png", "cat/b.c.JPEG", "cat/deep/a.jpg", "dog/a.jpg", "dog/ä.webp", "owl/1.png"]
    for split, some in (("train", names), ("val", ["cat/9.png", "dog/8.jpg"])):
        for seed, name in enumerate(some):
            path = tmp_path / "mine" / split / name
            path.parent.mkdir(parents=True, exist_ok=True)
            kind = {"png": "PNG", "webp": "WEBP"}.get(name.rpartition(".")[2], "JPEG")
            path.write_bytes(picture_bytes([len(split), seed], (40, 30), kind))
    return tmp_path / "mine"


def sources_of(kind, root=None):
    return {split: open_source(kind, split, root) for split in ("train", "val")}


def same_pictures(packed, source, order=None):
    order = range(len(source)) if order is None else order
    assert (len(packed), packed.labels) == (len(source), source.labels)
    for number, index in enumerate(order):
        (picture, target), (other, label) = packed.read(number), source.read(index)
        assert (target, picture.mode, picture.size) == (label, other.mode, other.size)
        assert picture.tobytes() == other.tobytes()


def test_files_go_in_as_they_are_and_in_order(folder, tmp_path):
    found = pack_sources(sources_of("folder", folder), tmp_path / "out")
    assert [(one.num_pictures, one.shards) for one in found.values()] == [
        (7, ["train-000000.tar"]),
        (2, ["val-000000.tar"]),
    ]
    for split in ("train", "val"):
        packed, source = open_source("shards", split, tmp_path / "out"), open_source("folder", split, folder)
        same_pictures(packed, source)
        assert [packed.stored(n) for n in range(len(packed))] == [source.stored(n) for n in range(len(source))]
    with tarfile.open(tmp_path / "out/train-000000.tar") as tar:
        names = tar.getnames()
        assert tar.extractfile("dog/a.cls").read() == b"1"
    assert names[::2] == [
        "cat/a.jpg", "cat/a-2.png", "cat/b_c.jpg", "cat/deep/a.jpg", "dog/a.jpg", "dog/ä.webp", "owl/1.png"
    ]  # fmt: skip
    assert (tmp_path / "out/classes.txt").read_text() == "cat\ndog\nowl\n"


def test_shards_end_at_their_size_and_lose_nothing(folder, tmp_path):
    for number in range(60):
        (folder / "train/owl" / f"{number:02d}.png").write_bytes(picture_bytes(number, (30, 30)))
    found = pack_sources(sources_of("folder", folder), tmp_path / "out", PackOptions(shard_size=40_000))
    sizes = [(tmp_path / "out" / name).stat().st_size for name in found["train"].shards]
    assert len(sizes) > 5
    assert max(sizes) <= 40_000
    assert sum(sizes) == found["train"].num_bytes
    same_pictures(open_source("shards", "train", tmp_path / "out"), open_source("folder", "train", folder))


def test_one_picture_larger_than_a_shard_has_one_of_its_own(folder, tmp_path):
    (folder / "train/cat/a.jpg").write_bytes(picture_bytes(1, (200, 200)))
    found = pack_sources(sources_of("folder", folder), tmp_path / "out", PackOptions(shard_size=30_000))
    assert (tmp_path / "out" / found["train"].shards[0]).stat().st_size > 30_000
    same_pictures(open_source("shards", "train", tmp_path / "out"), open_source("folder", "train", folder))


def test_the_order_is_mixed_by_a_seed(folder, tmp_path):
    names = {}
    for seed in (None, 0, 0, 1):
        out = tmp_path / f"out-{len(names)}"
        pack_sources(sources_of("folder", folder), out, PackOptions(shuffle=seed))
        names[out] = (out / "train-000000.tar").read_bytes()
    plain, first, again, other = names.values()
    assert first == again
    assert len({plain, first, other}) == 3
    source, packed = open_source("folder", "train", folder), open_source("shards", "train", list(names)[1])
    originals = {source.stored(index): index for index in range(7)}
    same_pictures(packed, source, [originals[packed.stored(number)] for number in range(7)])


def test_arrays_become_png(tmp_path):
    pytest.importorskip("sklearn")
    pack_sources(sources_of("digits"), tmp_path / "out")
    source, packed = open_source("digits", "val"), open_source("shards", "val", tmp_path / "out")
    same_pictures(packed, source)
    assert packed.name(3) == "val-000000.tar/3.png"


def test_archives_are_packed_again(tmp_path):
    write_shards(tmp_path / "in", "train", [0, 1, 1, 0, 1], per_shard=2)
    write_tar(
        tmp_path / "in/train-000002.tar", [*example("0000", 7, 1), *example("nameless", 8)]
    )  # a key of another shard
    write_shards(tmp_path / "in", "val", [1])
    write_imagenet(tmp_path / "imagenet")
    found = pack_sources(sources_of("shards", tmp_path / "in"), tmp_path / "out")
    assert found["train"].without_label == ["train-000002.tar/nameless.png"]
    packed, source = (open_source("shards", "train", tmp_path / name) for name in ("out", "in"))
    assert [packed.stored(n) for n in range(6)] == [source.stored(n) for n in range(6)]
    assert [packed.target(n) for n in range(6)] == [source.target(n) for n in range(6)] == [0, 1, 1, 0, 1, -1]
    assert packed.name(4) == "train-000000.tar/0000-2.png"
    pack_sources(sources_of("shards", tmp_path / "imagenet"), tmp_path / "again")
    same_pictures(open_source("shards", "val", tmp_path / "again"), open_source("shards", "val", tmp_path / "imagenet"))


def test_a_hugging_face_dataset_keeps_its_bytes(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    content = [picture_bytes(number, kind=kind) for number, kind in enumerate(("JPEG", "PNG", "JPEG"))]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    rows = {"image": [{"bytes": one, "path": None} for one in content], "label": [0, 1, 1]}
    data = datasets.Dataset.from_dict(rows, features=features)
    datasets.DatasetDict({"train": data, "validation": data}).save_to_disk(str(tmp_path / "saved"))
    assert main(["data", "pack", str(tmp_path / "saved"), "--out", str(tmp_path / "out")]) == 0
    packed = open_source("shards", "train", tmp_path / "out")
    assert [packed.stored(number) for number in range(3)] == content
    assert [packed.target(number) for number in range(3)] == [0, 1, 1]
    assert packed.labels == ["cat", "dog"]
    assert packed.name(0).endswith("0.jpg")


def leftovers(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != "mine")


@pytest.mark.parametrize("trouble", ["a file is gone", "the disk is full", "Ctrl-C"])
def test_nothing_half_written_is_left(trouble, folder, tmp_path, monkeypatch):
    sources = sources_of("folder", folder)
    error = OSError
    if trouble == "a file is gone":
        (folder / "val/dog/8.jpg").unlink()
    elif trouble == "the disk is full":
        monkeypatch.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError(28, "No space left")))
    else:
        error = KeyboardInterrupt

    def tell(done, total):
        assert leftovers(tmp_path) == [".out.part"]  # what is being written is not where it will be
        if trouble == "Ctrl-C" and done == 8:
            raise KeyboardInterrupt

    with pytest.raises(error):
        pack_sources(sources, tmp_path / "out", PackOptions(on_picture=tell))
    assert leftovers(tmp_path) == []


def test_places_and_settings_that_cannot_be_meant_are_refused(folder, tmp_path):
    sources = sources_of("folder", folder)
    (tmp_path / "out").mkdir()
    pack_sources(sources, tmp_path / "out")  # an empty folder is taken
    with pytest.raises(ValueError, match="out is there already; choose another"):
        pack_sources(sources, tmp_path / "out")
    (tmp_path / ".killed.part").mkdir()
    with pytest.raises(ValueError, match="is of a packing that still goes on, or was killed"):
        pack_sources(sources, tmp_path / "killed")
    assert (tmp_path / ".killed.part").is_dir()
    sources["train"].labels[0] = "cat\nand dog"
    with pytest.raises(ValueError, match="a line for each class, which cannot hold"):
        pack_sources(sources, tmp_path / "other")
    with pytest.raises(ValueError, match="a shard has at least 16,384 bytes; got 256"):
        PackOptions(shard_size=256)
    with pytest.raises(ValueError, match="must be at least 0; got -1"):
        PackOptions(shuffle=-1)


def test_the_command_packs_and_says_how_to_train(folder, tmp_path, capsys):
    assert main(["data", "pack", str(folder), "--out", str(tmp_path / "my shards"), "--shard-size", "64K"]) == 0
    shown = capsys.readouterr().out
    assert f"train with: castling train RECIPE data.source=shards 'data.root={tmp_path}/my shards'" in shown
    (line,) = [line for line in shown.splitlines() if "train" in line and "│" in line]
    assert line.split("│")[2:4] == ["        7 ", "      1 "]
    assert main(["data", "check", str(tmp_path / "my shards")]) == 0
    assert "my shards (shards)" in capsys.readouterr().out


def idx(root):
    for prefix in ("train", "t10k"):
        header = struct.pack(">HBB3I", 0, 8, 3, 2, 4, 4)
        (root / f"{prefix}-images-idx3-ubyte").write_bytes(header + bytes(range(32)))
        (root / f"{prefix}-labels-idx1-ubyte").write_bytes(struct.pack(">HBBI", 0, 8, 1, 2) + bytes([1, 0]))


def cifar(root):
    rng = np.random.default_rng(0)
    for name in ["test_batch", *(f"data_batch_{number}" for number in range(1, 6))]:
        (root / f"{name}.bin").write_bytes(bytes([3]) + rng.bytes(3072))


@pytest.mark.parametrize(("kind", "write"), [("idx", idx), ("cifar", cifar), ("shards", write_imagenet)])
def test_the_kind_of_a_folder_is_recognised(kind, write, tmp_path, capsys):
    (tmp_path / "data").mkdir()
    write(tmp_path / "data")
    assert main(["data", "pack", str(tmp_path / "data"), "--out", str(tmp_path / "out")]) == 0
    assert f"out ({kind})" in capsys.readouterr().out
    same_pictures(open_source("shards", "train", tmp_path / "out"), open_source(kind, "train", tmp_path / "data"))


UNUSABLE = {
    "no folder": (["nowhere"], "no folder nowhere"),
    "nothing known": (["."], "no labelled pictures recognised in ., which has mine; say by --source: digits, folder"),
    "unknown source": (["mine", "--source", "folders"], "data.source"),
    "unknown setting": (["mine", "--set", "colour=1"], "unknown key 'data.colour'"),
    "a small shard": (["mine", "--shard-size", "256"], "a shard has at least"),
}


@pytest.mark.parametrize("wrong", UNUSABLE)
def test_what_cannot_be_packed_has_code_2_and_one_line(wrong, folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words, message = UNUSABLE[wrong]
    assert main(["data", "pack", *words, "--out", "out"]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("castling:")]
    assert message in line
    assert leftovers(tmp_path) == []


def test_a_size_that_is_none_shows_the_usage(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["data", "pack", "x", "--out", "y", "--shard-size", "much"])
    assert "a size is a number with K, M, G or T, such as 256M; got 'much'" in capsys.readouterr().err
