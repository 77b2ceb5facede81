"""Headers of archives beside Python's tarfile, which others wrote; and what is said of archives that are broken."""

import gzip
import io
import random
import tarfile
import tempfile

import pytest
from archive_files import NoFile, picture_bytes, tar_bytes

from castling.tasks.shards.tar_walk import BrokenTar, Member, Window, refusal_of, walk_tar

LONG = "deep/" * 30 + "å" * 40 + ".jpg"
FORMS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def members_of(content, tmp_path, **bounds):
    with tempfile.TemporaryFile(buffering=0, dir=tmp_path) as file:
        file.write(content)
        return list(walk_tar(Window(file), "some.tar", **bounds))


def trouble_of(content, tmp_path, **bounds):
    with pytest.raises(BrokenTar) as error:
        members_of(content, tmp_path, **bounds)
    return str(error.value)


@pytest.mark.parametrize("form", FORMS)
def test_members_are_where_tarfile_finds_them(form, tmp_path):
    rng = random.Random(0)
    sizes = [0, 1, 511, 512, 513, 5000, 20000]
    members = [(f"a/{number:03d}.jpg", rng.randbytes(size)) for number, size in enumerate(sizes)]
    members.insert(3, ("a/", NoFile(tarfile.DIRTYPE)))
    if form != "ustar":
        members.insert(2, (LONG, b"behind a long name"))
    content = tar_bytes(members, FORMS[form])
    found = members_of(content, tmp_path)
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        theirs = [(info.name, info.isfile(), info.offset_data, info.size) for info in tar]
    assert [(one.name.rstrip("/"), one.kind == "file", one.offset, one.size) for one in found] == theirs
    for (name, stored), one in zip(members, found, strict=True):
        assert one.name.rstrip("/") == name.rstrip("/")
        assert one.kind == "folder" or content[one.offset : one.offset + one.size] == stored


def test_names_of_255_bytes_in_ustar_and_sizes_in_other_notation(tmp_path):
    name = "d" * 150 + "/" + "f" * 95
    content = bytearray(tar_bytes([(name, b"abc")]))
    content[124:136] = b"\x80" + (3).to_bytes(11, "big")
    content[148:156] = b" " * 8
    content[148:156] = f"{sum(content[:512]):06o}\0 ".encode()
    assert members_of(bytes(content), tmp_path) == [Member(name, "file", 512, 3)]


def test_an_archive_in_an_archive_is_walked_in_place(tmp_path):
    inner = tar_bytes([("1.jpg", b"first"), ("2.jpg", b"second")])
    content = tar_bytes([("n01.tar", inner)])
    (outer,) = members_of(content, tmp_path)
    found = members_of(content, tmp_path, start=outer.offset, end=outer.offset + outer.size)
    assert [content[one.offset : one.offset + one.size] for one in found] == [b"first", b"second"]


def test_every_place_to_cut_is_noticed(tmp_path):
    content = tar_bytes([("1.jpg", b"x" * 700), ("a/" * 90 + "2.jpg", b"y" * 30)], tarfile.GNU_FORMAT)
    end = content.rstrip(b"\0")
    for place in range(0, len(end), 37):
        trouble = trouble_of(content[:place], tmp_path)
        assert "is cut off" in trouble
    assert trouble_of(content[:1000], tmp_path) == (
        "some.tar is cut off within 1.jpg, which should go to byte 1,212: there are 1,000"
    )


def test_the_end_within_an_archive_is_that_of_the_member(tmp_path):
    content = tar_bytes([("1.jpg", b"x" * 700)])
    assert "cut off within 1.jpg" in trouble_of(content, tmp_path, start=0, end=1024)


def test_what_is_wrong_is_said(tmp_path):
    whole = tar_bytes([("1.jpg", b"x"), ("2.jpg", b"y")])
    damaged = whole[:1030] + bytes([whole[1030] ^ 1]) + whole[1031:]
    assert trouble_of(damaged, tmp_path) == "some.tar: the header at byte 1,024 is damaged"
    assert trouble_of(gzip.compress(whole), tmp_path).startswith("some.tar is compressed (gzip)")
    assert trouble_of(picture_bytes(0, (40, 40)), tmp_path) == "some.tar is no tar archive"
    assert "are these archives joined into one?" in trouble_of(whole + whole, tmp_path)
    assert trouble_of(b"", tmp_path) == "some.tar is cut off: it ends at byte 0 without its end mark"


@pytest.mark.parametrize("record", [b"99 path=x\n", b"x path=1\n", b"3 \n", b"-5 path=x\n", b"000000012 path=x\n"])
def test_damaged_extended_headers_are_said(record, tmp_path):
    header = tarfile.TarInfo("PaxHeader")
    header.size, header.type = len(record), tarfile.XHDTYPE
    content = header.tobuf() + record.ljust(512, b"\0") + tar_bytes([("1.jpg", b"x")])
    assert trouble_of(content, tmp_path) == "some.tar: the extended header at byte 512 is damaged"


def test_endless_names_are_not_read(tmp_path):
    header = tarfile.TarInfo("././@LongLink")
    header.size, header.type = 2**40, tarfile.GNUTYPE_LONGNAME
    assert "a name of 1,099,511,627,776 bytes" in trouble_of(header.tobuf(tarfile.GNU_FORMAT), tmp_path)


def sparse_header(extended):
    """GNU's header of a file with holes, with a block more that lists holes, or without."""
    header = bytearray(tarfile.TarInfo("holes.jpg").tobuf(tarfile.GNU_FORMAT))
    header[156:157], header[124:136], header[482] = b"S", b"00000000010\0", extended
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    return bytes(header) + bytes(512 if extended else 0) + b"12345678".ljust(512, b"\0")


@pytest.mark.parametrize("extended", [0, 1])
def test_files_with_holes_are_known_and_what_follows_is_found(extended, tmp_path):
    found = members_of(sparse_header(extended) + tar_bytes([("1.jpg", b"x")]), tmp_path)
    assert [(one.name, one.kind) for one in found] == [("holes.jpg", "sparse"), ("1.jpg", "file")]
    fields = {"GNU.sparse.major": "1", "GNU.sparse.name": "real.jpg"}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("GNUSparseFile.0/real.jpg")
        info.pax_headers = fields
        tar.addfile(info)
    assert [(one.name, one.kind) for one in members_of(buffer.getvalue(), tmp_path)] == [("real.jpg", "sparse")]


def test_what_is_no_file_of_the_archive_is_refused(tmp_path):
    kinds = [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE]
    found = members_of(
        tar_bytes([("0.png", b"x"), *((f"{n}.png", NoFile(kind)) for n, kind in enumerate(kinds, 1))]), tmp_path
    )
    refusals = [refusal_of(member) for member in found]
    assert [refusal and refusal.split()[0] for refusal in refusals] == [
        None,
        "links",
        "links",
        "devices",
        "devices",
        None,
    ]
    for name in ("/etc/1.jpg", "../1.jpg", "a/../../1.jpg"):
        assert refusal_of(Member(name, "file", 0, 0)) == "names that lead out of the archive"
    assert refusal_of(Member("a..b/..1.jpg", "file", 0, 0)) is None


def test_mutations_are_walked_or_refused(tmp_path):
    rng = random.Random(0)
    members = [(f"{n}.jpg", rng.randbytes(rng.randrange(900))) for n in range(4)]
    whole = [tar_bytes([*members, (LONG, b"x")], form) for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)]
    texts = []
    for number in range(2000):
        content = bytearray(whole[number % 2])
        for _ in range(rng.randrange(1, 4)):
            content[rng.randrange(len(content))] = rng.randrange(256)
        del content[rng.choice([len(content), rng.randrange(len(content))]) :]
        try:
            found = members_of(bytes(content), tmp_path)
        except BrokenTar as error:
            texts.append(str(error))
        else:
            assert all(0 <= one.offset <= one.offset + one.size <= len(content) for one in found if one.kind == "file")
    assert 500 < len(texts) < 2000
    assert not any("\n" in text for text in texts)
