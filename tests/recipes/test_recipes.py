"""Every shipped recipe, found recursively, is legal, builds its model, and trains."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from castling import is_castled
from castling.recipes import ROOT, describe_recipe, find_recipe, recipe_names
from castling.settings import read_yaml
from castling.tasks import TASKS
from castling.training import RunFolder, load_recipe, parse_recipe, train
from castling.training.recipe import recipe_text

NAMES = recipe_names()
IMAGENET = [name for name in NAMES if name.startswith("imagenet/")]
ROWS = ["deit_base", "deit_tiny", "levit_128", "levit_192", "levit_256", "levit_384"]
ROWS += ["mvitv2_base", "mvitv2_small", "mvitv2_tiny"]


def test_all_files_are_found():
    assert len(NAMES) == len(list(Path(ROOT).rglob("*.y*ml"))) >= 14
    assert [f"imagenet/castling_{row}" for row in ROWS] == IMAGENET


@pytest.mark.parametrize("name", NAMES)
def test_loads_and_reads_back(name):
    recipe = load_recipe(name)
    assert parse_recipe(read_yaml(recipe_text(recipe), name)) == recipe
    assert describe_recipe(name)


@pytest.mark.parametrize("name", NAMES)
def test_builds_its_model(name):
    recipe = load_recipe(name)
    model = TASKS[recipe.task].rebuild(recipe.settings, [str(number) for number in range(10)])
    if recipe.settings.model.name.startswith("castling_"):
        assert is_castled(model) == (recipe.settings.model.kernel == "softmax")


@pytest.mark.parametrize("name", IMAGENET)
def test_the_papers_settings(name):
    training = load_recipe(name).training
    assert (training.epochs, training.batch_size) == (1000, 4096 if "levit" in name else 2048)
    assert (training.optimizer.name, training.optimizer.momentum) == ("momentum", 0.9)
    assert training.optimizer.weight_decay == 2e-5
    rates = [training.learning_rate(epoch, 1000) for epoch in (0, 11, 12, 13)]
    assert rates == pytest.approx([0.01, 2.0, 1.975, 1.975 * 0.9875])
    assert load_recipe(name).settings.distillation.kind == "hard"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Noise in ImageNet's layout."""
    root = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for split, count in (("train", 4), ("val", 1)):
        for label in ("n01440764", "n02102040"):
            (root / split / label).mkdir(parents=True)
            for number in range(count):
                noise = rng.integers(0, 256, (256, 240, 3), dtype=np.uint8)
                Image.fromarray(noise).save(root / split / label / f"{number}.JPEG")
    return root


@pytest.mark.parametrize("name", [*IMAGENET, "imagenette/castling_deit_tiny"])
def test_runs_two_steps_on_made_pictures(name, pictures, tmp_path):
    small = ["training.batch_size=4", "training.max_steps=2", "training.workers=0", "training.log_every=1"]
    small += ["data.image_size=64", "model.options={img_size: 64}"]
    recipe = load_recipe(name, [f"data.root={pictures}", "distillation=null", *small])
    summary = train(recipe, tmp_path / "run")
    assert (summary["steps"], summary["skipped_steps"]) == (2, 0)
    assert summary["castled"]["loss"] > 0
    assert all(np.isfinite(line["loss"]) for line in RunFolder(tmp_path / "run").log_lines() if line["kind"] == "step")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.epoch=3", "unknown key 'training.epoch': did you mean 'epochs'"),
        ("training.epochs=three", "training.epochs must be of type int; got 'three'"),
        ("training.optimizer.name=adamv", "training.optimizer: unknown optimizer 'adamv': did you mean 'adam'"),
        ("model.name=castling_deit_tinny_patch16_224", "did you mean 'castling_deit_tiny_patch16_224'"),
        ("model.kernel=linear_angluar", "unknown model.kernel 'linear_angluar': did you mean 'linear_angular'"),
        ("modle.name=x", "unknown key 'modle': did you mean 'model'"),
        ("task=clasification", "unknown task 'clasification': did you mean 'classification'"),
        ("training.threshold.kind=linar", "unknown training.threshold.kind 'linar': did you mean 'linear'"),
        ("data.source=foldr", "unknown data.source 'foldr': did you mean 'folder'"),
        ("seed=-1", "seed must be a whole number of at least 0; got -1"),
        ("training.epochs", "expected key=value"),
    ],
)
def test_wrong_settings_fail_before_anything_starts(override, message):
    with pytest.raises(ValueError, match="(?s)" + message.replace("(", r"\(")):
        load_recipe("digits/castling", [override])


def test_an_unknown_recipe_names_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'digits/castling'"):
        load_recipe("digit/castling")
    with pytest.raises(ValueError, match=r"there is no recipe file mine\.yaml"):
        find_recipe("mine.yaml")
