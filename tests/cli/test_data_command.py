"""`castling data check`: exit codes, JSON and the page, on data that the tests make."""

import json

import numpy as np
import pytest
from PIL import Image

from castling.cli.main import main


@pytest.fixture
def root(tmp_path):
    """Three pictures a split with one box each, in COCO's form."""
    root = tmp_path / "mine"
    (root / "annotations").mkdir(parents=True)
    for start, split in enumerate(("train", "val")):
        (root / f"{split}2017").mkdir()
        content = {"images": [], "annotations": [], "categories": [{"id": 0, "name": "cat"}]}
        for number in range(3):
            pixels = np.random.default_rng([start, number]).integers(0, 256, (20, 24, 3), np.uint8)
            Image.fromarray(pixels).save(root / f"{split}2017" / f"{number}.png")
            content["images"].append({"id": number, "file_name": f"{number}.png", "width": 24, "height": 20})
            box = {"id": number, "image_id": number, "category_id": 0, "bbox": [2, 2, 9, 9]}
            content["annotations"].append(box)
        (root / "annotations" / f"instances_{split}2017.json").write_text(json.dumps(content))
    return root


def test_clean_data_has_code_0_and_is_counted(root, capsys):
    assert main(["data", "check", str(root)]) == 0
    shown = capsys.readouterr().out
    assert "mine (coco)" in shown
    assert "errors: 0, warnings: 0" in shown
    (line,) = [line for line in shown.splitlines() if "cat" in line]
    assert [word for word in line.split() if word.isdigit()] == ["3", "3"]


def test_errors_have_code_1_and_are_named(root, capsys):
    (root / "train2017" / "1.png").write_bytes(b"broken")
    assert main(["data", "check", str(root), "--format", "coco"]) == 1
    shown = capsys.readouterr().out
    assert "error: train: 1 pictures that cannot be read: 1.png" in shown
    assert "errors: 1, warnings: 0" in shown


def test_warnings_alone_have_code_0(root, capsys):
    Image.new("RGB", (9, 9)).save(root / "train2017" / "z.png")
    assert main(["data", "check", str(root)]) == 0
    assert "warning: train: 1 pictures without annotation: z.png" in capsys.readouterr().out


def break_json(root):
    (root / "annotations" / "instances_train2017.json").write_text('{"images": [')
    return [root]


UNUSABLE = {
    "no folder": (lambda root: [root / "none"], "castling: no folder"),
    "no data": (lambda root: [root / "annotations"], "castling: no data recognised in"),
    "unknown format": (
        lambda root: [root, "--format", "coca"],
        "castling: unknown format 'coca': did you mean 'coco'?",
    ),
    "unknown setting": (lambda root: [root, "--set", "colour=1"], "castling: unknown key 'data.colour'"),
    "broken file": (break_json, "is no json"),
}


@pytest.mark.parametrize("wrong", UNUSABLE)
def test_what_cannot_be_used_has_code_2_and_one_line(wrong, root, capsys):
    words, message = UNUSABLE[wrong]
    assert main(["data", "check", *map(str, words(root))]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "Traceback" not in error
    assert len([line for line in error.splitlines() if line.startswith("castling:")]) == 1


def test_json_is_written_or_printed_alone(root, tmp_path, capsys):
    assert main(["data", "check", str(root), "--json", str(tmp_path / "found.json")]) == 0
    written = json.loads((tmp_path / "found.json").read_text())
    capsys.readouterr()
    assert main(["data", "check", str(root), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == written
    assert (written["format"], written["errors"], written["findings"]) == ("coco", 0, [])
    assert [split["per_class"] for split in written["splits"]] == [{"cat": 3}, {"cat": 3}]


def test_the_page_shows_samples(root, tmp_path):
    assert main(["data", "check", str(root), "--out", str(tmp_path / "new" / "page.html"), "--samples", "2"]) == 0
    text = (tmp_path / "new" / "page.html").read_text()
    assert text.count("data:image/jpeg;base64,") == 4
    assert "train: 0.png" in text


def test_settings_say_where_pictures_are(root):
    (root / "val2017").rename(root / "photos")
    assert main(["data", "check", str(root)]) == 1
    assert main(["data", "check", str(root), "--set", "val_pictures=photos"]) == 0
