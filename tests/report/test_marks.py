import pytest

from castling.report.marks import marked, read_marked, write_marked

PAGE = """a
<!-- castling models: begin -->
old
<!-- castling models: end -->
b
<!-- castling study x: begin -->
\\1
<!-- castling study x: end -->
"""


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    return path


def test_a_file_without_marks_is_left_alone(page):
    with pytest.raises(ValueError, match="lacks the lines '<!-- castling study y: begin -->'"):
        write_marked(page, "study y", "table")
    assert page.read_text() == PAGE


def test_only_what_stands_between_the_marks_is_replaced(page):
    write_marked(page, "models", "new \\2\nlines")
    assert page.read_text() == PAGE.replace("old", "new \\2\nlines")
    assert (read_marked(page, "models"), read_marked(page, "study x")) == ("new \\2\nlines", "\\1")


def test_marks_are_found_in_order(page):
    assert marked(page) == ["models", "study x"]


def test_between_new_marks_there_is_nothing(tmp_path):
    path = tmp_path / "new.md"
    path.write_text("<!-- castling models: begin -->\n<!-- castling models: end -->\n")
    write_marked(path, "models", "table")
    assert path.read_text() == "<!-- castling models: begin -->\ntable\n<!-- castling models: end -->\n"
