"""What is around the code: a wheel that runs where nothing of this folder is, and files that other tools read."""

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
import torch
import yaml

import castling
from castling.recipes import recipe_names
from castling_command import VERBS

ROOT = Path(__file__).parent.parent
FORMS = [ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml" for name in ("bug", "request", "question")]


def pip(*arguments):
    words = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy, in which no earlier build is that setuptools would pack again."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT / "castling", folder / "project" / "castling", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("castling_command.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "project")
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, folder / "project")
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def programs(wheel, tmp_path_factory):
    """The programs of an environment with the wheel, which finds the dependencies where they are installed."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    (libraries,) = folder.glob("lib/python*/site-packages")
    (libraries / "dependencies.pth").write_text(f"{Path(torch.__file__).parent.parent}\n")
    pip("--python", folder / "bin" / "python", "install", "--no-deps", "--no-index", wheel)
    return folder / "bin"


@pytest.fixture
def run(programs, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run_program(name, *arguments):
        words = [programs / name, *arguments]
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run_program


@pytest.mark.slow
def test_the_wheel_has_the_code_the_recipes_and_the_data(wheel):
    packed = set(zipfile.ZipFile(wheel).namelist())
    files = {path for path in (ROOT / "castling").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {"castling/py.typed", "castling/report/paper_numbers.csv", "castling_command.py"} <= packed
    assert {path.relative_to(ROOT).as_posix() for path in files} <= packed
    information = f"castling_vit-{castling.__version__}.dist-info"
    assert {name.split("/")[0] for name in packed} == {"castling", "castling_command.py", information}


@pytest.mark.slow
def test_the_command_runs_from_the_wheel(programs, run):
    assert run("castling", "--version").strip() == castling.__version__
    shown = run("castling", "--help")
    assert all(verb in shown for verb in VERBS)
    listed = run("castling", "recipes")
    assert all(name in listed for name in recipe_names())
    place = run("python", "-c", "import importlib.util; print(importlib.util.find_spec('castling').origin)")
    assert place.startswith(str(programs.parent))


def test_the_citation_has_this_version_and_the_papers_authors():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == castling.__version__
    paper = citation["preferred-citation"]
    assert paper["title"].startswith("Castling-ViT: Compressing Self-Attention")
    assert (len(paper["authors"]), paper["year"]) == (8, 2023)


def test_the_workflow_runs_the_make_commands_on_the_pythons_of_the_project():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())["jobs"]
    pythons = jobs["check"]["strategy"]["matrix"]["python"]
    project = (ROOT / "pyproject.toml").read_text()
    assert pythons == [name for name in (f"3.{minor}" for minor in range(8, 20)) if f"Python :: {name}" in project]
    commands = {"check", *(row["target"] for row in jobs["test"]["strategy"]["matrix"]["include"])}
    makefile = (ROOT / "Makefile").read_text()
    assert all(f"\n{command}:" in makefile for command in commands)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_issue_forms_have_what_github_asks_for(form):
    content = yaml.safe_load(form.read_text())
    assert content["name"]
    assert content["description"]
    assert any(field.get("validations", {}).get("required") for field in content["body"])
    names = [field["id"] for field in content["body"]]
    assert len(set(names)) == len(names)
    assert {field["type"] for field in content["body"]} <= {"textarea", "input", "dropdown", "checkboxes", "markdown"}
    assert all(field["attributes"]["label"] for field in content["body"])


def test_hooks_before_a_commit_are_what_make_lint_runs():
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    hooks = [hook["entry"].removeprefix(".venv/bin/").split()[0] for hook in repository["hooks"]]
    lines = (ROOT / "Makefile").read_text().partition("\nlint:")[2].partition("\n\n")[0].splitlines()[1:]
    programs = {line.removeprefix("\t$(BIN)/").split()[0] for line in lines}
    assert programs == {"ruff", "mypy", "lint-imports"}
    assert programs <= set(hooks)
