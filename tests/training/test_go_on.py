"""`castling train --go-on`: one command that starts a run and starts it again."""

import pytest

from castling.cli.main import main
from castling.training import RunFolder, load_recipe
from castling.training.recipe import first_difference, recipe_text


@pytest.fixture
def command(micro, tmp_path):
    (tmp_path / "recipe.yaml").write_text(recipe_text(micro()))
    return ["train", str(tmp_path / "recipe.yaml"), "training.max_steps=2", "--out", str(tmp_path / "run")]


def test_the_same_command_begins_and_goes_on(command, tmp_path):
    assert main([*command, "--go-on"]) == 0
    (tmp_path / "run" / "summary.json").unlink()  # as of a run that was killed with its last evaluation done
    assert main([*command, "--go-on"]) == 0
    assert "resumed" in (tmp_path / "run" / "events.jsonl").read_text()
    assert RunFolder(tmp_path / "run").summary()["steps"] == 2


def test_without_it_a_run_is_not_trained_over(command, capsys):
    assert main(command) == 0
    assert main(command) == 2
    assert "holds a run already" in capsys.readouterr().err


def test_a_run_of_other_settings_is_refused(command, capsys, tmp_path):
    assert main(command) == 0
    assert main([*command, "training.learning_rate.peak=0.1", "--go-on"]) == 2
    assert "other settings: training.learning_rate.peak is 0.1, and there 0.002" in capsys.readouterr().err
    assert RunFolder(tmp_path / "run").recipe().training.learning_rate.peak == 0.002


def test_it_needs_the_folder(command, capsys):
    assert main([*command[:3], "--go-on"]) == 2
    assert "--go-on needs the folder of the run: name it with --out" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["digits/castling", "imagenet/castling_levit_128"])
def test_a_recipe_is_equal_to_itself_read_again(name, tmp_path):
    recipe = load_recipe(name)
    (tmp_path / "again.yaml").write_text(recipe_text(recipe))
    assert first_difference(recipe, load_recipe(tmp_path / "again.yaml")) is None
