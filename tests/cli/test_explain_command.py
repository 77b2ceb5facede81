"""`castling explain` as a person calls it."""

import json

import pytest
from PIL import Image

from castling.cli.main import main


def test_explain_writes_and_says(digits_run, tmp_path, capsys):
    Image.new("RGB", (40, 30), "white").save(tmp_path / "scan.png")
    words = ["explain", str(tmp_path / "scan.png"), "--model", str(digits_run / "castled"), "--at", "0.2", "0.9"]
    assert main([*words, "--out", str(tmp_path / "out"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["at"] == [6, 28]
    assert [entry["layer"] for entry in said["layers"]] == ["blocks.0.attn"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "attention.png",
        "explanation.json",
        "explanation.npz",
        "relevance.png",
    ]
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    assert "scan.png: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--at", "2", "0.5"], "from 0 to 1; got 2 and 0.5"),
        (["--layers", "blocks.4.attn"], "no attention 'blocks.4.attn'"),
        (["--size", "33"], "does not fit patches"),
    ],
)
def test_what_is_wrong_is_one_line(digits_run, tmp_path, capsys, words, message):
    Image.new("L", (8, 8)).save(tmp_path / "scan.png")
    before = sorted(tmp_path.iterdir())
    call = ["explain", str(tmp_path / "scan.png"), "--model", str(digits_run), "--out", str(tmp_path / "out")]
    assert main([*call, *words]) == 2
    assert message in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before
    assert main(["explain", str(tmp_path), "--model", str(digits_run)]) == 2
    assert "is a folder: explain takes one picture" in capsys.readouterr().err
