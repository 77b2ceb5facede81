"""Every shipped recipe, found recursively, is legal, builds its model, and trains."""

from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import nn

from castling import is_castled
from castling.recipes import ROOT, STUDIES, describe_recipe, find_recipe, recipe_names
from castling.settings import read_yaml
from castling.training import RunFolder, load_recipe, parse_recipe, train
from castling.training.recipe import recipe_text

NAMES = recipe_names()
IMAGENET = [name for name in NAMES if name.startswith("imagenet/")]
ROWS = ["deit_base", "deit_tiny", "levit_128", "levit_192", "levit_256", "levit_384"]
ROWS += ["mvitv2_base", "mvitv2_small", "mvitv2_tiny"]
BACKBONES = [name for name in IMAGENET if "net_vit" in name]
TABLE = [name for name in IMAGENET if name not in BACKBONES]


def test_all_files_are_found():
    files = [path for path in Path(ROOT).rglob("*.y*ml") if path.parent != STUDIES]
    assert len(NAMES) == len(files) >= 14
    assert [f"imagenet/castling_{row}" for row in ROWS] == TABLE
    assert [f"imagenet/{name}" for name in timm.list_models("castling_*net_vit*")] == BACKBONES


@pytest.mark.parametrize("name", NAMES)
def test_loads_and_reads_back(name):
    recipe = load_recipe(name)
    assert parse_recipe(read_yaml(recipe_text(recipe), name)) == recipe
    assert describe_recipe(name)


@pytest.mark.parametrize("name", NAMES)
def test_builds_its_model(name):
    """At full size, but without memory for its weights."""
    recipe = load_recipe(name)
    with torch.device("meta"):
        model = recipe.make_task({"labels": list("0123456789"), "category_ids": list(range(10))}).build_network()
    if recipe.settings.model.name.startswith("castling_"):
        kernels = {recipe.settings.model.kernel, getattr(recipe.settings.model.attention, "kernel", None)}
        assert is_castled(model) == ("softmax" in kernels)


@pytest.mark.parametrize("name", TABLE)
def test_the_papers_settings(name):
    training = load_recipe(name).training
    assert (training.epochs, training.batch_size) == (1000, 4096 if "levit" in name else 2048)
    assert (training.optimizer.name, training.optimizer.momentum) == ("momentum", 0.9)
    assert training.optimizer.weight_decay == 2e-5
    rates = [training.learning_rate(epoch, 1000) for epoch in (0, 11, 12, 13)]
    assert rates == pytest.approx([0.01, 2.0, 1.975, 1.975 * 0.9875])
    assert load_recipe(name).settings.distillation.kind == "hard"


@pytest.mark.parametrize("name", BACKBONES)
def test_backbones_of_detectors_train_as_levit(name):
    recipe = load_recipe(name)
    training, distillation = recipe.training, recipe.settings.distillation
    assert (training.epochs, training.batch_size, training.ema_decay) == (1000, 2048, 0.99996)
    assert (training.optimizer.name, training.optimizer.weight_decay) == ("adamw", 0.025)
    assert training.learning_rate(5, 1000) == pytest.approx(5e-4 * training.batch_size / 512)
    assert (distillation.kind, distillation.model) == ("hard", "regnety_160.deit_in1k")
    assert recipe.settings.model.name == name.removeprefix("imagenet/")
    assert "Not trained here" in find_recipe(name).read_text().partition("task:")[0]


@pytest.mark.parametrize("name", TABLE)
def test_the_header_says_that_the_teacher_is_another(name):
    header = find_recipe(name).read_text().partition("task:")[0]
    assert "Its teacher, which it does not name, has 85.5 % top-1" in header
    assert "DeiT's RegNetY-160, has 82.9 %" in header
    assert load_recipe(name).settings.distillation.model == "regnety_160.deit_in1k"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Noise in ImageNet's layout."""
    root = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for split, count in (("train", 4), ("val", 1)):
        for label in ("n01440764", "n02102040"):
            (root / split / label).mkdir(parents=True)
            for number in range(count):
                noise = rng.integers(0, 256, (80, 72, 3), dtype=np.uint8)
                Image.fromarray(noise).save(root / split / label / f"{number}.JPEG")
    return root


class StandIn(nn.Module):
    """A teacher of two classes that notes what it is asked; as a RegNet, it takes pictures of any size."""

    num_classes = 2
    pretrained_cfg: ClassVar = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5), "input_size": (3, 224, 224)}

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 2)
        self.asked, self.seen = [], []

    def forward(self, images):
        self.seen.append((tuple(images.shape), self.training))
        return self.head(images.mean((2, 3)))


@pytest.fixture
def teacher(monkeypatch):
    """Stands in for what timm would download."""
    stand_in, create = StandIn(), timm.create_model

    def create_model(name, *args, **options):
        if not name.startswith("regnety"):
            return create(name, *args, **options)
        stand_in.asked.append((name, options))
        return stand_in

    monkeypatch.setattr(timm, "create_model", create_model)
    return stand_in


SHALLOW = {  # and narrow, where the network can be told to
    "deit": "{img_size: 64, depth: 1, embed_dim: 96}",
    "levit": "{img_size: 64, depth: [1, 1, 1], embed_dim: [32, 48, 64]}",
    "mvitv2": "{img_size: 64, depths: [1, 1, 1, 1]}",
    "lcnet": "{scale: 0.5}",
    "esnet": "{ratios: [[0.5], [0.5], [0.5, 0.5]]}",
}


def run_two_steps(name, pictures, folder):
    family = next(options for family, options in SHALLOW.items() if family in name)
    small = ["training.batch_size=4", "training.max_steps=2", "training.workers=0", "training.log_every=1"]
    small += ["data.image_size=64", f"model.options={family}", f"data.root={pictures}"]
    summary = train(load_recipe(name, small), folder)
    assert (summary["steps"], summary["skipped_steps"]) == (2, 0)
    assert summary["castled"]["loss"] > 0
    steps = RunFolder(folder).steps()
    assert [np.isfinite(record.loss) for record in steps] == [True, True]
    return steps


@pytest.mark.slow
@pytest.mark.parametrize("name", [*TABLE, "imagenet/castling_lcnet_vit_small", "imagenet/castling_esnet_vit_small"])
def test_runs_two_steps_with_a_stand_in_teacher(name, pictures, tmp_path, teacher):
    weights = teacher.head.weight.clone()
    steps = run_two_steps(name, pictures, tmp_path / "run")
    assert teacher.asked == [("regnety_160.deit_in1k", {"pretrained": True, "in_chans": 3})]
    assert teacher.seen == [((4, 3, 64, 64), False)] * 2
    assert torch.equal(teacher.head.weight, weights)
    for record in steps:
        assert record.parts["teacher_loss"] > 0
        halves = (record.parts["label_loss"] + record.parts["teacher_loss"]) / 2
        assert record.loss == pytest.approx(halves, rel=1e-4)


def test_runs_two_steps_without_a_teacher(pictures, tmp_path):
    steps = run_two_steps("imagenette/castling_deit_tiny", pictures, tmp_path / "run")
    assert [record.parts for record in steps] == [{}, {}]


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
