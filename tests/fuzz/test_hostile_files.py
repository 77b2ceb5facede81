"""Files made to do harm: programs in pickles, little that becomes very much, and what never ends."""

import gzip
import io
import json
import os
import pickle
import struct
import zipfile
import zlib
from pathlib import Path

import good_files
import numpy as np
import pytest
import torch
from guard import guarded
from safetensors.torch import save_file

from castling.exporting import read_metadata
from castling.settings import read_yaml
from castling.tasks.array_files import read_cifar, read_idx
from castling.tasks.byte_pickles import read_byte_pickle
from castling.tasks.detection.voc import read_voc
from castling.tasks.networks import load_start, read_weights
from castling.tasks.pictures import MAX_PIXELS, read_picture
from castling.tensor_files import parse_torch
from castling.training import parse_recipe
from castling.training.manifest import read_whole


class Calls:
    """Asks whoever unpickles it to call something."""

    def __init__(self, function, *arguments):
        self.made = function, arguments

    def __reduce__(self):
        return self.made


def code(*parts):
    return b"".join([b"\x80\x04", *parts, b"."])


ENCODE = b"c_codecs\nencode\n"
ENCODED = ENCODE + b"h\x00\x8c\x06latin1\x86R"  # the text at a place of the memo, as bytes
HOSTILE_PICKLES = {
    "a command": pickle.dumps(Calls(os.system, "touch ran")),
    "an expression": pickle.dumps(Calls(eval, "open('ran', 'w')")),
    "inside of a batch": pickle.dumps({b"data": [Calls(exec, "open('ran', 'w')")], b"labels": [1]}, 2),
    "an array of objects": pickle.dumps({b"data": np.array([Calls(os.system, "touch ran")], object)}),
    "an array of another type": pickle.dumps({b"data": np.zeros(3)}),
    "by attributes": code(b"cos\nsystem\n", b"\x8c\x09touch ran", b"\x85R"),
    "by a name in two parts": code(b"\x8c\x02os", b"\x8c\x06system", b"\x93", b"\x8c\x09touch ran", b"\x85R"),
    "by an extension": code(b"\x82\x01"),
    "by an instance": b"(S'touch ran'\nios\nsystem\n.",
    "a new object": code(b"cnumpy\nndarray\n", b"J\x00\xca\x9a\x3b\x85", b"\x81"),
    "a far place in the memo": code(b"Nr\xff\xff\xff\x7f"),
    "many bytes that are not there": code(b"\x8e" + struct.pack("<Q", 2**40)),
    "a number of many digits": code(b"\x8b" + struct.pack("<i", 2**31 - 1)),
    "an array of a huge shape": code(
        *(b"cnumpy.core.multiarray\n_reconstruct\n", b"cnumpy\nndarray\n", b"K\x00\x85", b"C\x01b", b"\x87R"),
        *(b"(K\x01", b"J\x00\xca\x9a\x3bJ\x00\xca\x9a\x3b\x86", b"cnumpy\ndtype\n", b"\x8c\x02u1\x89\x88\x87R"),
        *(b"\x89", b"C\x01a", b"tb"),
    ),
    "texts that double": code(ENCODE, b"\x8c\x01a", b"\x8c\x03hex\x86R"),
    "a text many times": code(b"X\x00\x10\x00\x00", b"a" * 4096, b"q\x00", ENCODED * 100),
    "deep lists": code(b"]" * 20_000, b"a" * 19_999),
    "a dictionary by numbers": pickle.dumps({1: 2}),
    "nothing on the stack": code(b"R"),
    "an open mark": code(b"(("),
    "a text that is none": code(b"\x8c\x02\xff\xff"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE_PICKLES)
def test_a_hostile_pickle_is_refused_and_nothing_is_called(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test_batch").write_bytes(HOSTILE_PICKLES[name])
    with guarded(), pytest.raises(ValueError, match="test_batch: ") as error:
        read_cifar(tmp_path, "val")
    assert len(str(error.value).splitlines()) == 1
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("protocol", range(5))
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_bytes_are_what_the_usual_reader_gives(protocol, order):
    wanted = {
        "data": np.asarray(good_files.pixels(4, 3072), order=order),
        "labels": [1, -2, 3**50],
        "names": ["a", "é"],
    }
    found = read_byte_pickle(pickle.dumps(wanted, protocol))
    assert found["data"].dtype == np.uint8
    assert np.array_equal(found.pop("data"), wanted.pop("data"))
    assert found == wanted


def bmp_of(width, height):
    return b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)


def png_of(width, height):
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(13, head), (0, b"IDAT")]
    packed = [struct.pack(">I", length) + data + struct.pack(">I", zlib.crc32(data)) for length, data in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


@pytest.mark.parametrize("make", [bmp_of, png_of])
@pytest.mark.parametrize("size", [(40_000, 25_000), (200_000, 200_000), (2**31 - 1, 1)])
def test_a_picture_that_says_it_has_a_thousand_million_pixels_is_refused(tmp_path, make, size):
    (tmp_path / "a.png").write_bytes(make(*size))
    with guarded(), pytest.raises(ValueError, match=f"{MAX_PIXELS:,} are read"):
        read_picture(tmp_path / "a.png")


def test_the_limit_holds_where_pillow_has_none(tmp_path, monkeypatch):
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", None)
    (tmp_path / "a.png").write_bytes(png_of(40_000, 25_000))
    with (
        guarded(),
        pytest.raises(ValueError, match=f"40000 x 25000 pixels, and no more than {MAX_PIXELS:,} are"),
    ):
        read_picture(tmp_path / "a.png")


def test_a_picture_that_another_program_would_draw_is_refused(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n")
    with guarded(), pytest.raises(ValueError, match="EPS files are drawn by a program"):
        read_picture(tmp_path / "a.jpg")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes have names on Unix")
def test_a_pipe_is_no_picture(tmp_path):
    os.mkfifo(tmp_path / "a.png")
    with guarded(), pytest.raises(ValueError, match=r"a\.png is no file"):
        read_picture(tmp_path / "a.png")


def test_a_packed_idx_file_that_becomes_very_much_is_refused(tmp_path):
    for name, content in good_files.idx(packed=True).items():
        (tmp_path / name).write_bytes(content)
    shape = struct.pack(">III", 70, 1000, 1000)
    bomb = gzip.compress(bytes([0, 0, 8, 3]) + shape + bytes(70_000_000), 1)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(bomb)
    with guarded(), pytest.raises(ValueError, match=r"train-images-idx3-ubyte.gz: .* more than pictures do"):
        read_idx(tmp_path, "train")


def test_packed_weights_and_metadata_are_refused(tmp_path):
    saved = io.BytesIO()
    torch.save({"weight": torch.zeros(1000)}, saved)
    with zipfile.ZipFile(saved) as plain, zipfile.ZipFile(tmp_path / "a.pth", "w", zipfile.ZIP_DEFLATED) as packed:
        for part in plain.namelist():
            packed.writestr(part, plain.read(part))
    with guarded(), pytest.raises(ValueError, match="is packed, which torch never does"):
        read_weights(tmp_path / "a.pth", "model.weights")
    with zipfile.ZipFile(tmp_path / "a.pt2", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model/extra/castling", bytes(2**25))
    with guarded(), pytest.raises(ValueError, match="its metadata take 33,554,432 bytes"):
        read_metadata(tmp_path / "a.pt2")


def test_weights_with_a_program_are_refused_in_a_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"weight": Calls(os.system, "touch ran")}, "a.pth")
    with guarded(), pytest.raises(ValueError, match="holds no weights") as error:
        read_weights(Path("a.pth"), "model.weights")
    assert len(str(error.value).splitlines()) == 1
    assert not Path("ran").exists()


def test_a_pickle_that_ends_within_a_number_is_refused_in_a_line():
    saved = io.BytesIO()
    with zipfile.ZipFile(saved, "w") as archive:
        archive.writestr("a/data.pkl", b"\x80\x02G\x00")
        archive.writestr("a/version", "3")
    with guarded(), pytest.raises(ValueError, match=r"optimizer\.pt holds no tensors: unpack requires"):
        parse_torch(saved.getvalue(), "optimizer.pt")


def test_tensors_of_which_one_number_stands_for_all_are_refused(tmp_path):
    saved, swollen = io.BytesIO(), torch.zeros(1).expand(2**30, 2)
    torch.save({"state": [{"exp_avg": swollen}]}, saved)
    with guarded(), pytest.raises(ValueError, match=r"optimizer\.pt holds no tensors: its .* 8,589,934,592 of them"):
        parse_torch(saved.getvalue(), "optimizer.pt")
    torch.save({"pos_embed": swollen}, tmp_path / "a.pth")
    with guarded(), pytest.raises(ValueError, match=r"a\.pth holds no tensors: its .* 8,589,934,592 of them"):
        read_weights(tmp_path / "a.pth", "model.weights")
    torch.save({"position_ids": torch.arange(9).expand(1, 9), "half": torch.zeros(8)[:4]}, tmp_path / "b.pth")
    assert set(read_weights(tmp_path / "b.pth", "model.weights")) == {"position_ids", "half"}


@pytest.mark.filterwarnings("ignore:Validating sparse")
@pytest.mark.parametrize("odd", [torch.zeros(2, 2, device="meta"), torch.eye(2).to_sparse()])
def test_weights_without_numbers_of_their_own_are_refused(tmp_path, odd):
    torch.save({"weight": odd, "bias": torch.zeros(2)}, tmp_path / "a.pth")
    with guarded(), pytest.raises(ValueError, match=r"a\.pth holds no weights: 'weight' is a tensor without numbers"):
        load_start(torch.nn.Linear(2, 2), tmp_path / "a.pth")


def test_weights_with_other_names_are_refused_in_a_line(tmp_path):
    names = ["weight", "bias\n\x1b[2J", *(f"of.another.network.{number}" for number in range(1000))]
    save_file({name: torch.zeros(2) for name in names}, tmp_path / "a.safetensors")
    with (
        guarded(),
        pytest.raises(ValueError, match=r"model\.weights: .*a\.safetensors: .* missing \['bias'\]") as error,
    ):
        load_start(torch.nn.Linear(2, 2), tmp_path / "a.safetensors")
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 2000


ENTITIES = "".join(f'<!ENTITY e{place} "{f"&e{place - 1};" * 10}">' for place in range(1, 10))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f'<!DOCTYPE a [<!ENTITY e0 "ha">{ENTITIES}]><annotation>&e9;</annotation>', "DOCTYPE"),
        ('<!DOCTYPE a [<!ENTITY e SYSTEM "file:///etc/passwd">]><annotation>&e;</annotation>', "DOCTYPE"),
        ("<a>" * 50_000 + "</a>" * 50_000, None),
        ("<a>" * 50_000, "no xml"),
    ],
)
def test_xml_without_end_is_read_or_told_of(tmp_path, text, said):
    (tmp_path / "Annotations").mkdir()
    (tmp_path / "Annotations" / "a.xml").write_text(text)
    (tmp_path / "train.txt").write_text("a\n")
    with guarded():
        written = read_voc(tmp_path / "Annotations", tmp_path, "train", tmp_path / "train.txt")
    assert not written.boxes
    assert [said in line for line in written.broken] == ([True] if said else [])


BOMB = ", ".join(["&a0 [1, 1]", *(f"&a{place} [{', '.join([f'*a{place - 1}'] * 10)}]" for place in range(1, 12))])


@pytest.mark.parametrize("section", [{"training": {"epochs": f"[{BOMB}]"}}, {"data": {"mean": [f"[{BOMB}]"]}}])
def test_aliases_in_texts_of_a_recipe_are_not_followed(section):
    values = {"task": "classification", "model": {"name": "castling_deit_tiny_patch16_224"}, **section}
    with guarded(), pytest.raises(ValueError, match="must be of type"):
        parse_recipe(values)
    with guarded(), pytest.raises(ValueError, match="aliases"):
        read_yaml(f"model: [{BOMB}]", "a.yaml")


@pytest.mark.parametrize("name", ["/dev/zero", "../outside", ".", "", "folder"])
def test_a_manifest_names_files_of_its_folder_alone(tmp_path, name):
    (tmp_path / "outside").write_text("secret")
    (tmp_path / "run" / "folder").mkdir(parents=True)
    (tmp_path / "run" / "manifest.json").write_text(json.dumps({name: "0"}))
    with guarded(), pytest.raises(ValueError, match="which is no file in it"):
        read_whole(tmp_path / "run")
