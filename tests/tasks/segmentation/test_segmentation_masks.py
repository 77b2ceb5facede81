"""Masks of every kind become the same labels; a value that is no class is never one in silence."""

import json
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from castling.tasks.pictures import WrongAnnotation
from castling.tasks.segmentation.classes import ClassList, ClassTable, find_list, make_table, read_list
from castling.tasks.segmentation.masks import mask_values, read_labels, read_mask, to_labels

VALUES = np.array([[0, 1, 2, 2], [255, 0, 1, 255], [1, 1, 0, 2]], np.uint8)
COLORS = ((10, 20, 30), (200, 0, 7), (0, 0, 255))
TABLE = make_table(ClassList(("sky", "road", "car"), COLORS))


def palette_mask():
    image = Image.fromarray(VALUES)
    image.putpalette(list(range(255, -1, -1)) * 3)
    return image


def grey_and_alpha():
    return Image.merge("LA", [Image.fromarray(VALUES), Image.new("L", VALUES.shape[::-1], 40)])


MASKS = {
    "8-bit": lambda: Image.fromarray(VALUES),
    "16-bit": lambda: Image.fromarray(VALUES.astype(np.uint16)),
    "palette": palette_mask,
    "grey and alpha": grey_and_alpha,
}


@pytest.mark.parametrize("kind", MASKS)
def test_masks_of_numbers_are_read_alike(kind, tmp_path):
    path = tmp_path / "mask.png"
    MASKS[kind]().save(path)
    assert read_mask(path).tolist() == VALUES.tolist()
    labels = read_labels(path, TABLE, (4, 3))
    assert labels.dtype == np.uint8
    assert labels.tolist() == VALUES.tolist()  # of this table the values are the labels


def test_palette_and_sixteen_bits_are_what_the_files_have(tmp_path):
    for kind, mode in (("palette", "P"), ("16-bit", "I;16")):
        MASKS[kind]().save(tmp_path / "mask.png")
        with Image.open(tmp_path / "mask.png") as saved:
            assert saved.mode == mode


def test_one_bit_is_two_values(tmp_path):
    Image.fromarray(VALUES > 0).save(tmp_path / "mask.png")
    assert read_mask(tmp_path / "mask.png").tolist() == (VALUES > 0).astype(int).tolist()


def grey_png(values, bits):
    """A grey PNG of few bits, which PIL reads and does not write."""
    height, width = values.shape
    as_bits = (values[..., None] >> np.arange(bits - 1, -1, -1) & 1).reshape(height, width * bits)
    rows = np.packbits(as_bits, axis=1)
    content = b"".join(b"\0" + row.tobytes() for row in rows)  # no filter
    chunks = {
        b"IHDR": struct.pack(">2I5B", width, height, bits, 0, 0, 0, 0),
        b"IDAT": zlib.compress(content),
        b"IEND": b"",
    }
    written = [
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks.items()
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(written)


@pytest.mark.parametrize("kind", ["grey", "palette"])
@pytest.mark.parametrize("bits", [1, 2, 4])
def test_few_bits_are_the_numbers_that_the_file_has(bits, kind, tmp_path):
    values = np.arange(2 * 2**bits + 3, dtype=np.uint8)[None] % 2**bits  # all of them, and a byte that is not full
    path = tmp_path / "mask.png"
    if kind == "grey":
        path.write_bytes(grey_png(values, bits))
    else:
        image = Image.fromarray(values)
        image.putpalette(bytes(range(100, 100 + 3 * 2**bits)))
        image.save(path, bits=bits)
    assert tuple(path.read_bytes()[24:26]) == (bits, {"grey": 0, "palette": 3}[kind])
    assert read_mask(path).tolist() == values.tolist()
    table = make_table(ClassList(tuple(map(str, range(2**bits)))))
    assert read_labels(path, table, values.shape[::-1]).tolist() == values.tolist()


@pytest.mark.parametrize("alpha", [False, True])
def test_colours_are_classes_by_the_list(alpha, tmp_path):
    labels = np.array([[0, 1], [2, 0]])
    pixels = np.array(COLORS, np.uint8)[labels]
    image = Image.fromarray(pixels)
    if alpha:
        image.putalpha(7)
    image.save(tmp_path / "mask.png")
    assert read_labels(tmp_path / "mask.png", TABLE, (2, 2)).tolist() == labels.tolist()


def test_an_unknown_colour_is_named_with_the_legal_ones(tmp_path):
    Image.new("RGB", (3, 2), (1, 2, 3)).save(tmp_path / "mask.png")
    with pytest.raises(
        WrongAnnotation, match=r"mask\.png: unknown value \(1, 2, 3\) \(6 pixels\); .*road \(200, 0, 7\)"
    ):
        read_labels(tmp_path / "mask.png", TABLE, (3, 2))


def test_colours_without_a_list_of_colours(tmp_path):
    table = make_table(ClassList(("sky", "road", "car")))
    grey = np.repeat(VALUES[..., None], 3, axis=2)
    assert to_labels(grey, table).labels.tolist() == VALUES.tolist()  # saved as colours by some program
    coloured = grey.copy()
    coloured[0, 0, 0] = 9
    coloured[coloured == 255] = 0
    Image.fromarray(coloured).save(tmp_path / "mask.png")
    with pytest.raises(WrongAnnotation, match="it is in colours, and the list of classes has none"):
        read_labels(tmp_path / "mask.png", table, (4, 3))


def test_sixteen_bits_have_more_values(tmp_path):
    table = make_table(ClassList(("a", "b")), values=(300, 40000), ignore=(65535,))
    values = np.array([[300, 40000, 65535, 255]], np.uint16)
    Image.fromarray(values).save(tmp_path / "mask.png")
    assert read_labels(tmp_path / "mask.png", table, (4, 1)).tolist() == [[0, 1, 255, 255]]
    values[0, 0] = 301
    Image.fromarray(values).save(tmp_path / "mask.png")
    with pytest.raises(
        WrongAnnotation, match=r"unknown value 301 \(1 pixel\); legal: 300, 40000 are classes, 255, 65535"
    ):
        read_labels(tmp_path / "mask.png", table, (4, 1))


def test_an_unknown_value_is_named_with_file_count_and_legal_values(tmp_path):
    values = VALUES.copy()
    values[0] = 11
    Image.fromarray(values).save(tmp_path / "mask.png")
    with pytest.raises(WrongAnnotation) as raised:
        read_labels(tmp_path / "mask.png", TABLE, (4, 3))
    assert str(raised.value) == (
        f"{tmp_path / 'mask.png'}: unknown value 11 (4 pixels); legal: 0-2 are classes, 255 ignored"
    )


def test_a_lossy_file_is_told_of(tmp_path):
    Image.fromarray(VALUES * 40).save(tmp_path / "mask.jpg")
    with pytest.raises(WrongAnnotation, match=r"\.jpg files change values: masks are best PNG"):
        read_labels(tmp_path / "mask.jpg", TABLE, (4, 3))


def test_another_size_is_named(tmp_path):
    Image.fromarray(VALUES).save(tmp_path / "mask.png")
    with pytest.raises(WrongAnnotation, match=r"mask\.png: the mask has 4 x 3 pixels, its picture 3 x 4"):
        read_labels(tmp_path / "mask.png", TABLE, (3, 4))


def test_a_truncated_mask_is_unreadable_and_not_wrong(tmp_path):
    Image.fromarray(np.random.default_rng(0).integers(0, 3, (40, 40), np.uint8)).save(tmp_path / "mask.png")
    (tmp_path / "mask.png").write_bytes((tmp_path / "mask.png").read_bytes()[:200])
    with pytest.raises(OSError, match="truncated"):
        read_labels(tmp_path / "mask.png", TABLE, (40, 40))


def test_large_and_negative_numbers_are_looked_up_too():
    table = ClassTable(("a", "b"), (-1, 70000))
    found = to_labels(np.array([[-1, 70000, 255, 5]], np.int32), table)
    assert found.labels.tolist() == [[0, 1, 255, 255]]
    assert dict(found.unknown) == {5: 1}


def test_a_mask_of_floats_is_no_mask_of_numbers():
    assert mask_values(Image.new("F", (2, 2), 1.0)).ndim == 3  # its values are not to be trusted: it becomes colours


@pytest.mark.parametrize(
    ("name", "text", "names", "colors"),
    [
        ("classes.txt", "sky\nroad sign\n\n", ("sky", "road sign"), None),
        ("classes.txt", "sky 1 2 3\nroad sign 4 5 6\n", ("sky", "road sign"), ((1, 2, 3), (4, 5, 6))),
        ("classes.txt", "1 2 3\tsky\n4,5,6,road\n", ("sky", "road"), ((1, 2, 3), (4, 5, 6))),
        ("classes.txt", "class 1\nclass 2\n", ("class 1", "class 2"), None),
        ("classes.json", '["sky", "road"]', ("sky", "road"), None),
        ("classes.json", '{"sky": [1, 2, 3]}', ("sky",), ((1, 2, 3),)),
        ("classes.json", '[{"name": "sky", "color": [1, 2, 3]}]', ("sky",), ((1, 2, 3),)),
        ("classes.json", '[{"name": "sky"}]', ("sky",), None),
    ],
)
def test_lists_of_classes(name, text, names, colors, tmp_path):
    (tmp_path / name).write_text(text)
    assert find_list(tmp_path) == ClassList(names, colors)


def test_a_folder_without_a_list(tmp_path):
    assert find_list(tmp_path) is None


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("classes.txt", "\n", "there is no class in it"),
        ("classes.txt", "sky 1 2 3\nroad", "'road' has none"),
        ("classes.json", "[1]", "1 is no name"),
        ("classes.json", '"sky"', "it is a str"),
        ("classes.json", '{"sky": [1, 2]}', "expected names of classes"),
        ("classes.json", "[", "it is not JSON"),
    ],
)
def test_lists_that_cannot_be_read_are_named(name, text, said, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=said) as raised:
        read_list(tmp_path / name)
    assert str(tmp_path / name) in str(raised.value)


def test_the_name_ignore_is_no_class():
    table = make_table(ClassList(("sky", "ignore", "road"), ((1, 1, 1), (0, 0, 0), (2, 2, 2))))
    assert (table.names, table.values, table.ignored) == (("sky", "road"), (0, 2), (1, 255))
    assert (table.colors, table.ignored_colors) == (((1, 1, 1), (2, 2, 2)), ((0, 0, 0),))
    assert to_labels(np.array([[[0, 0, 0], [2, 2, 2]]]), table).labels.tolist() == [[255, 1]]


def test_255_can_be_a_class():
    table = make_table(ClassList(("ground", "object")), values=(0, 255))
    assert to_labels(np.array([[0, 255]]), table).labels.tolist() == [[0, 1]]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"values": (1,)}, "2 names need as many values; got 1"),
        ({"values": (1, 1)}, "the value 1 is there twice"),
        ({"ignore": (1,)}, "ignore has values of classes: 1"),
        ({"values": (1, 2), "reduce_zero": True}, "reduce_zero must not be set as well"),
    ],
)
def test_values_that_do_not_fit_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        make_table(ClassList(("sky", "road")), **settings)


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        (ClassList(()), "1 to 254 classes; got 0"),
        (ClassList(tuple(map(str, range(255)))), "1 to 254 classes; got 255"),
        (ClassList(("sky", "sky")), "the class 'sky' is there twice"),
        (ClassList(("sky", "road"), ((1, 1, 1), (1, 1, 1))), r"the colour \(1, 1, 1\) is there twice"),
        (ClassList(("sky",), ((1, 1, 300),)), "three numbers from 0 to 255"),
    ],
)
def test_classes_that_cannot_be_are_refused(listed, said):
    with pytest.raises(ValueError, match=said):
        make_table(listed)


def test_lists_survive_json(tmp_path):
    (tmp_path / "classes.json").write_text(json.dumps({"sky": [1, 2, 3], "road": [4, 5, 6]}))
    assert make_table(find_list(tmp_path)).colors == ((1, 2, 3), (4, 5, 6))
