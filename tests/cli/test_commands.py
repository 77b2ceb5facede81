"""The commands as a person runs them, in a subprocess; what only their parser says, in this process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import castling
from castling.cli import paper
from castling.cli.main import main

VERBS = [("bench", "attention"), ("bench", "models")]
VERBS += [
    (name,)
    for name in [
        "castle",
        "convert",
        "demo",
        "evaluate",
        "export",
        "figures",
        "models",
        "paper",
        "plan",
        "predict",
        "recipes",
        "report",
        "train",
    ]
]
COMMAND = Path(sys.executable).with_name("castling")


def run(*arguments):
    return subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=120)


def test_help_and_version():
    assert run("--version").stdout.strip() == castling.__version__
    shown = run("--help")
    assert shown.returncode == 0
    for verb in ("bench", "castle", "demo", "evaluate", "figures", "models", "paper", "predict", "recipes", "train"):
        assert verb in shown.stdout


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb_has_an_example(verb, capsys):
    with pytest.raises(SystemExit) as left:
        main([*verb, "--help"])
    assert left.value.code == 0
    assert f"Example: castling {' '.join(verb)}" in capsys.readouterr().out


def test_figures(tmp_path):
    result = run("figures", "--out", tmp_path / "new", "--steps", 50)
    assert result.returncode == 0, result.stderr
    names = ["angular_kernel.png", "feature_space.png", "fitting.png"]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == names
    assert all(name in result.stdout for name in names)
    assert "Fitting the angular similarity" in result.stdout


def test_bench_attention_prints_a_row_per_number_of_tokens():
    result = run("bench", "attention", "--tokens", 64, 128, "--kernel", "relu_e")
    assert result.returncode == 0, result.stderr
    assert "relu_e" in result.stdout
    rows = [line.split("│")[1:-1] for line in result.stdout.splitlines() if line.startswith("│")]
    assert [row[0].strip() for row in rows] == ["64", "128"]
    assert [row[1].strip() for row in rows] == ["2 M", "6 M"]


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


def test_models():
    result = run("models", "castling_deit_t*")
    assert result.returncode == 0, result.stderr
    assert [word in result.stdout for word in ("castling_deit_tiny_patch16_224", "5.9 M", "1.18 G", "levit")] == [
        *[True] * 3,
        False,
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bench", "attention", "--tokens", 0), "must be at least 1; got [0]"),
        (("bench", "attention", "--kernel", "relu"), "invalid choice: 'relu'"),
        (("figures", "--steps", 0, "--out", "{tmp_path}"), "num_steps must be at least 1; got 0"),
        (("figures", "--out", "{tmp_path}/file/below"), "file"),
        (("models", "resnet"), "no model matches 'resnet'; there are castling_deit_base"),
        (("paper", "--json", "{tmp_path}/file/below"), "no folder"),
        (("castel",), "invalid choice: 'castel'"),
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


def test_an_error_is_one_line():
    result = run("models", "resnet")
    assert result.returncode == 2
    assert result.stderr.startswith("castling: no model matches 'resnet'")
    assert "Traceback" not in result.stderr
