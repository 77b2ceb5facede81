"""The commands as a person runs them, in a subprocess; what only their parser says, in this process."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import castling
import castling.cli
from castling.cli import paper
from castling.cli.main import _without_settings, main
from castling.training.saved import open_model
from castling_command import VERBS, make_parser

NESTED = [("bench", "attention"), ("bench", "models"), ("data", "check")]
SUBJECTS = [*NESTED, *((name,) for name in VERBS if name not in ("bench", "data"))]
SPEAKING = [name for name in VERBS if name not in ("bench", "data", "completion", "play")]
COMMAND = Path(sys.executable).with_name("castling")


def run(*arguments, **environment):
    words = [COMMAND, *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, env=os.environ | environment)


def imported(*arguments):
    """The modules that a command imports."""
    lines = run(*arguments, PYTHONPROFILEIMPORTTIME="1").stderr.splitlines()
    return {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}


def test_version():
    assert run("--version").stdout.strip() == castling.__version__


def test_the_table_has_every_file_of_the_command_line():
    files = {path.stem for path in Path(castling.cli.__file__).parent.glob("*.py")}
    assert set(VERBS) == files - {"__init__", "main"}


@pytest.mark.parametrize("verb", VERBS)
def test_help_shows_the_line_that_a_verb_has_for_itself(verb):
    assert VERBS[verb]
    assert make_parser(verb).format_help() == make_parser().format_help()


@pytest.mark.parametrize(("argument", "code"), [("--help", 0), ("--version", 0), ("castel", 2)])
def test_what_needs_no_verb_is_answered_without_torch(argument, code):
    assert run(argument).returncode == code
    modules = imported(argument)
    assert "castling_command" in modules
    assert not modules & {"torch", "castling"}


@pytest.mark.slow
def test_a_verb_imports_its_own_module_alone():
    script = "import sys, castling_command; castling_command.main(); print(*sys.modules)"
    words = [sys.executable, "-c", script, "recipes", "digits/castling"]
    modules = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stdout.split()
    assert [verb for verb in VERBS if f"castling.cli.{verb}" in modules] == ["recipes"]


@pytest.mark.slow
def test_python_dash_m_is_the_same_command():
    words = [sys.executable, "-m", "castling", "castel"]
    result = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert result.returncode == 2
    assert "castling: error: no verb 'castel': did you mean 'castle'?" in result.stderr


@pytest.mark.parametrize("subject", SUBJECTS)
def test_help_of_a_verb_has_an_example(subject, capsys):
    with pytest.raises(SystemExit) as left:
        main([*subject, "--help"])
    assert left.value.code == 0
    assert f"Example: castling {' '.join(subject)}" in capsys.readouterr().out


def test_a_verb_that_is_like_none_gets_all_of_them(capsys):
    with pytest.raises(SystemExit):
        main(["xyz"])
    assert f"no verb 'xyz': there are {', '.join(VERBS)}" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_verbs_subjects_and_flags(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(verb in script for verb in VERBS)
    assert all(word in script for word in ("checkpoint", "openvino", "attention", "head-dims"))


def test_bash_takes_the_completion_and_completes(tmp_path, capsys):
    assert main(["completion", "bash"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    answer = "_shtab_castling; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    ask = "source ./script; COMP_WORDS=(castling {}); COMP_CWORD={}; " + answer
    for words, place, wanted in (("castl", 1, "castle"), ("export --int", 2, "--int8"), ("bench mod", 2, "models")):
        bash = ["bash", "-c", ask.format(words, place)]
        result = subprocess.run(bash, capture_output=True, text=True, cwd=tmp_path, timeout=60)
        assert wanted in result.stdout.split(), result


WORDS = (("castl", "castle"), ("export --int", "--int8"), ("bench mod", "models"), ("train --go", "--go-on"))


@pytest.mark.skipif(shutil.which("fish") is None, reason="there is no fish here: apt-get install fish")
def test_fish_takes_the_completion_and_completes(tmp_path, capsys):
    assert main(["completion", "fish"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    for words, wanted in WORDS:
        fish = ["fish", "-c", f"source ./script; complete -C 'castling {words}'"]
        result = subprocess.run(fish, capture_output=True, text=True, cwd=tmp_path, timeout=60)
        assert wanted in [line.split("\t")[0] for line in result.stdout.splitlines()], result


def test_figures(tmp_path, capsys):
    assert main(["figures", "--out", str(tmp_path / "new"), "--steps", "50"]) == 0
    shown = capsys.readouterr().out
    names = ["angular_kernel.png", "feature_space.png", "fitting.png"]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == names
    assert all(name in shown for name in names)
    assert "Fitting the angular similarity" in shown


def test_bench_attention_prints_a_row_per_number_of_tokens(capsys):
    assert main(["bench", "attention", "--tokens", "64", "128", "--kernel", "relu_e"]) == 0
    shown = capsys.readouterr().out
    assert "relu_e" in shown
    rows = [line.split("│")[1:-1] for line in shown.splitlines() if line.startswith("│")]
    assert [row[0].strip() for row in rows] == ["64", "128"]
    assert [row[1].strip() for row in rows] == ["2 M", "6 M"]


def test_every_table_that_is_counted_has_a_title():
    assert {row.table for row in paper.ROWS} == set(paper.TITLES)


def test_paper_writes_what_it_prints(tmp_path, capsys, monkeypatch):
    few = [row for row in paper.ROWS if row.row in ("Castling-DeiT-B", "Castling-MViTv2-S")]
    monkeypatch.setattr(paper, "ROWS", few)
    assert main(["paper", "--json", str(tmp_path / "paper.json")]) == 0
    printed = capsys.readouterr().out
    content = json.loads((tmp_path / "paper.json").read_text())
    assert content["environment"]["torch"]
    (row,) = [row for row in content["rows"] if row["row"] == "Castling-DeiT-B" and row["column"] == "params_m"]
    assert row["reported"] == 87.22
    assert f"{row['computed']:.3f}" in printed
    assert "the paper's row repeats that of MViTv2-S" in printed


def test_paper_leaves_out_rows_whose_extra_is_missing(capsys, monkeypatch):
    few = [row for row in paper.ROWS if row.row in ("Castling-DeiT-B", "ViT-Base")]
    monkeypatch.setattr(paper, "ROWS", few)
    monkeypatch.delitem(sys.modules, "castling.tasks.segmentation.mask2former", raising=False)
    for name in [name for name in sys.modules if name.startswith("transformers.models.mask2former")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert main(["paper"]) == 0
    printed = capsys.readouterr().out
    assert "87.22" in printed
    assert 'ADE20K: transformers is missing; install it with: pip install "castling-vit[segmentation]"' in printed


def test_models(capsys):
    assert main(["models", "castling_deit_t*"]) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("castling_deit_tiny_patch16_224", "5.9 M", "1.18 G"))
    assert "levit" not in shown


def test_json_stands_alone_and_quiet_says_nothing_else(capsys):
    assert main(["models", "castling_deit_tiny*", "--json"]) == 0
    printed = capsys.readouterr()
    (row,) = json.loads(printed.out)
    assert row["name"] == "castling_deit_tiny_patch16_224"
    assert "1.18 G" in printed.err
    assert main(["models", "castling_deit_tiny*", "--json", "--quiet"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == [row]
    assert not printed.err
    assert main(["models", "castling_deit_tiny*", "--quiet"]) == 0
    printed = capsys.readouterr()
    assert not printed.out + printed.err


@pytest.mark.parametrize("subject", [("bench", "attention"), ("data", "check"), *((name,) for name in SPEAKING)])
def test_every_verb_with_numbers_has_json_and_can_be_quiet(subject, capsys):
    with pytest.raises(SystemExit):
        main([*subject, "--help"])
    shown = capsys.readouterr().out
    assert "--json" in shown
    assert "--quiet" in shown


def test_words_have_no_colours_where_there_is_no_terminal():
    assert "\x1b" not in run("models", "castling_deit_tiny*").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bench", "attention", "--tokens", 0), "must be at least 1; got [0]"),
        (("bench", "attention", "--kernel", "relu"), "invalid choice: 'relu'"),
        (("figures", "--steps", 0, "--out", "{tmp_path}"), "num_steps must be at least 1; got 0"),
        (("figures", "--out", "{tmp_path}/file/below"), "file"),
        (("models", "resnet"), "no model matches 'resnet'; there are castling_deit_base"),
        (("paper", "--json", "{tmp_path}/file/below"), "no folder"),
        (("castel",), "did you mean 'castle'?"),
        ((), "VERB"),
    ],
)
def test_bad_input_is_said_with_exit_code_2(arguments, message, tmp_path, capsys):
    (tmp_path / "file").touch()
    try:
        code = main([str(argument).replace("{tmp_path}", str(tmp_path)) for argument in arguments])
    except SystemExit as left:  # the parser's own way
        code = left.code
    assert code == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_an_error_is_one_line():
    result = run("models", "resnet")
    assert result.returncode == 2
    assert result.stderr.startswith("castling: no model matches 'resnet'")
    assert "Traceback" not in result.stderr


def test_models_look_at_the_file_before_they_count(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("castling.cli.models.model_row", lambda name: pytest.fail("counted"))
    (tmp_path / "x.md").write_text("no marks")
    assert main(["models", "deit", "--into", str(tmp_path / "x.md")]) == 2
    assert "lacks the lines" in capsys.readouterr().err
    assert main(["models", "deit", "--into", str(tmp_path / "gone.md")]) == 2


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        (["train", "x", "a.b=1", "--out", "c=d"], ["a.b=1"]),
        (["convert", "x", "--sizes", "32", "a=1", "--epochs", "1", "b_c=[1, 2]"], ["a=1", "b_c=[1, 2]"]),
        (["predict", "x=1.png", "--set", "top=3", "y=2"], []),
        ([], []),
    ],
)
def test_settings_stand_anywhere(words, settings):
    assert _without_settings(words) == ([word for word in words if word not in settings], settings)


def test_next_steps_can_be_pasted(tmp_path):
    folder = tmp_path / "my runs"
    with pytest.raises(ValueError, match=r"castling castle '.*/my runs'"):
        open_model(make_damaged(folder) / "castled")


def make_damaged(folder):
    (folder / "castled").mkdir(parents=True)
    (folder / "castled" / "manifest.json").write_text("{}")
    return folder
