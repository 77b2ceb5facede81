"""Examples in README and docs run, links point to files, and README's map names what is there."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from castling.bench import speed_tables
from castling.bench.speed_tables import write_speed_tables
from castling.report import study_table
from castling.report.marks import marked
from castling.workflows.study_page import write_tables

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]


def blocks(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


def pages_with(mark):
    return [page for page in PAGES if any(name.startswith(mark) for name in marked(page))]


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_python_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "__main__"}  # where dataclasses and registries look for what is defined
    for block in blocks(page):
        exec(compile(block, page.name, "exec"), names)


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((ROOT / "examples" / "castle_your_vit.ipynb").read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    names: dict = {"__name__": "__main__"}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    assert names["certificate"].allowed
    assert names["certificate"].quadratic_tensors == []
    assert names["verified"].num_softmax == 0
    assert names["seen"].rows[0].kernel == "mean_centred"


@pytest.mark.slow
def test_the_site_is_built_strictly_and_has_every_page(tmp_path):
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    result = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    for page in (ROOT / "docs").glob("*.md"):
        assert (tmp_path / "site" / page.stem / "index.html").is_file()
    reference = (tmp_path / "site" / "reference" / "attention" / "index.html").read_text()
    assert 'id="castling.attention.linear_angular.linear_angular_attention"' in reference
    start = (tmp_path / "site" / "index.html").read_text()
    assert 'href="explain/"' in start
    assert "fonts.googleapis.com" not in start


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_point_to_files(page):
    targets = re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_readme_has_an_example():
    assert blocks(ROOT / "README.md")


def test_the_map_names_every_room_and_no_other():
    drawn = re.search(r"## The house\n.*?```text\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL).group(1)
    rooms = set(re.findall(r"^ {2}(\w+)/", drawn, re.MULTILINE))
    package = ROOT / "castling"
    assert rooms == {path.name for path in package.iterdir() if (path / "__init__.py").exists()}
    named_files = set(re.findall(r"\b(\w+\.py)\b", drawn))
    assert named_files <= {path.name for path in [*package.rglob("*.py"), *ROOT.glob("*.py")]}


def test_every_verb_has_a_page():
    verbs = {path.stem for path in (ROOT / "castling" / "cli").glob("*.py")} - {"__init__", "main"}
    assert verbs <= {page.stem for page in PAGES}


def test_files_stay_small():
    lengths = {path.name: len(path.read_text().splitlines()) for path in (ROOT / "castling").rglob("*.py")}
    assert {name: length for name, length in lengths.items() if length > 350} == {}


TABLES = [
    *((write_tables, page) for page in pages_with(study_table.MARK)),
    *((write_speed_tables, page) for page in pages_with(speed_tables.MARK)),
]


@pytest.mark.parametrize(("write", "page"), TABLES, ids=lambda value: getattr(value, "stem", ""))
def test_tables_are_those_of_the_recorded_results(write, page, tmp_path):
    """Stale? castling study --into README.md docs/studies.md; castling bench models --into README.md docs/speed.md."""
    again = tmp_path / page.name
    again.write_text(page.read_text())
    write(again, ROOT / "benchmarks" / "results")
    assert again.read_text() == page.read_text()
