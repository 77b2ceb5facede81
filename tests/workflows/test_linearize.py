"""The recipes of a conversion's stages."""

from pathlib import Path

import pytest

from castling.config import AttentionConfig
from castling.training import parse_recipe
from castling.workflows.linearize import Linearization, stage_recipes

HOST = {
    "task": "classification",
    "model": {"name": "vit_tiny_patch16_224"},
    "training": {"learning_rate": {"peak": 1e-3, "warmup_epochs": 5}, "max_steps": 7},
}


def test_stages_differ_where_they_must():
    settings = Linearization(("features", "finetune"), (2, 3), rate=1e-4)
    features, finetune = stage_recipes(parse_recipe(HOST), Path("out"), settings, ["seed=5"])
    assert (features.imitate, finetune.imitate) == ("features", None)
    assert (features.training.epochs, finetune.training.epochs, finetune.seed) == (2, 3, 5)
    assert features.settings.model.convert.start is None
    assert finetune.settings.model.convert.start == "out/features/converted.safetensors"
    assert features.settings.distillation is None
    assert finetune.settings.distillation.model == "self"
    blends = (features.training.blend(0.0), features.training.blend(0.5), finetune.training.blend(0.0))
    assert blends == (0.0, 1.0, 1.0)
    assert features.training.learning_rate.warmup_epochs == 0.2
    assert (features.training.learning_rate.peak, features.training.max_steps) == (1e-4, None)


def test_the_branch_closes_in_the_last_stage_alone():
    settings = Linearization(attention=AttentionConfig(threshold=0.01))
    *before, last = stage_recipes(parse_recipe(HOST), Path("out"), settings)
    assert [recipe.training.threshold for recipe in before] == [None, None]
    assert [last.training.threshold(progress) for progress in (0.0, 0.3, 0.8)] == [0.01, 0.01, 1.0]


def test_the_last_stage_has_the_size_of_use():
    first, *_, last = stage_recipes(parse_recipe(HOST), Path("out"), Linearization(train_sizes=(384,)))
    assert last.settings.data.sizes == ()
    assert (first.settings.data.image_size, first.settings.model.input_size) == (224, None)
    assert (last.settings.data.image_size, last.settings.model.input_size) == (384, 384)


def test_the_last_stage_has_all_sizes_of_use():
    first, *_, last = stage_recipes(parse_recipe(HOST), Path("out"), Linearization(train_sizes=(224, 384)))
    assert (first.settings.data.sizes, first.settings.model.input_size) == ((), None)
    assert (last.settings.data.image_size, last.settings.data.sizes) == (224, (224, 384))
    assert last.settings.model.input_size == 224


def test_a_task_with_one_size_is_refused_several():
    host = parse_recipe({"task": "segmentation", "model": {"name": "vit_tiny_patch16_224"}, "data": {"root": "x"}})
    with pytest.raises(ValueError, match="segmentation is trained at one picture size; got 224, 384"):
        stage_recipes(host, Path("out"), Linearization(("features",), (1,), train_sizes=(224, 384)))


def test_nobody_is_followed_on_request():
    [recipe] = stage_recipes(parse_recipe(HOST), Path("out"), Linearization(("finetune",), (1,), follow=False))
    assert recipe.settings.distillation is None
    assert recipe.training.blend(0.0) == 0.0  # the only stage moves the network over


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stages": ("finetune", "features"), "epochs": (1, 1)}, "in this order; got finetune, features"),
        ({"stages": ("attention",), "epochs": (1,)}, "add features or finetune"),
        ({"stages": ("task",), "epochs": (1,)}, "unknown stage 'task'"),
        ({"epochs": (1, 0, 1)}, "3 numbers of at least 1"),
    ],
)
def test_settings_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        Linearization(**options)
