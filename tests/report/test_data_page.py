import base64
import io
import re
from dataclasses import replace
from pathlib import Path

from PIL import Image

from castling.report.data_page import class_rows, render_data_page, split_rows, write_data_page
from castling.tasks.data_check import DataReport, Finding, Sample, SplitReport


def made(findings=()):
    sizes = {"smallest": (4, 3), "median": (5, 4), "largest": (9, 9)}
    splits = [
        SplitReport("train", 1200, {"cat": 3, "<dog>": 1500}, sizes, {"boxes": 1503}),
        SplitReport("val", 2, {"cat": 1}, {}, {"boxes": 1}),
    ]
    samples = [Sample("train: a&b.png", Image.new("RGB", (40, 30), (255, 0, 0)), "boxes outside")]
    return DataReport(Path("somewhere/mine"), "coco", "boxes", splits, list(findings), samples)


def test_rows_have_a_number_for_each_split():
    assert list(class_rows(made())) == [("cat", "3", "1"), ("<dog>", "1,500", "0")]
    rows = {name: numbers for name, *numbers in split_rows(made())}
    assert rows["pictures"] == ["1,200", "2"]
    assert rows["boxes"] == ["1,503", "1"]
    assert rows["largest picture"] == ["9 x 9", "-"]


def test_classes_have_shares_where_counts_are_too_large():
    report = replace(made(), as_shares=True)
    assert list(class_rows(report)) == [("cat", "0.2 %", "100 %"), ("<dog>", "99.8 %", "0 %")]


def test_the_page_shows_the_samples_and_needs_nothing_else(tmp_path):
    path = write_data_page(made(), tmp_path / "new" / "page.html")
    text = path.read_text()
    (data,) = re.findall(r'src="data:image/jpeg;base64,([^"]+)"', text)
    with Image.open(io.BytesIO(base64.b64decode(data))) as picture:
        assert picture.size == (40, 30)
        assert picture.getpixel((20, 15))[0] > 240
    assert "train: a&amp;b.png<br>boxes outside" in text
    assert not re.findall(r"https?://|<script|<link", text)


def test_clean_data_is_said_to_be_clean_and_names_are_escaped():
    text = render_data_page(made())
    assert "<strong>Clean</strong>" in text
    assert "Findings" not in text
    assert "&lt;dog&gt;" in text
    assert "<dog>" not in text
    assert "Written by castling data check from somewhere/mine" in text


def test_errors_and_warnings_are_counted_and_named():
    findings = [
        Finding("error", "boxes outside", "train", 2000, ["<a>", "b"]),
        Finding("warning", "odd", "val", 1, ["c"]),
    ]
    text = render_data_page(made(findings))
    assert "<strong>Errors: 2,000</strong><p>Warnings: 1</p>" in text
    assert "&lt;a&gt;\nb" in text
