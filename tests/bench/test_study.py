"""Studies as files: what is refused, what a run's recipe is, and that every shipped one can begin."""

import pytest
import torch
import yaml

from castling.bench.study import load_study, parse_study
from castling.bench.study_cost import forecast
from castling.measure import count_macs
from castling.measure.shapes import shapes_only
from castling.recipes import recipe_names, study_names
from castling.training import load_recipe

FACTS = {"labels": list("0123456789"), "category_ids": list(range(10))}
SMALL = {
    "title": "Small",
    "question": "Which?",
    "recipe": "digits/castling",
    "variants": {"one": None, "two": {"set": {"training.epochs": 7, "model.kernel": "softmax"}}},
}


def small(**changes):
    return parse_study({**SMALL, **changes}, "small")


@pytest.mark.parametrize("name", study_names())
def test_every_study_can_begin(name):
    """All variants are recipes, and their networks can be built; at full size, but without memory for weights."""
    study = load_study(name)
    assert study.title
    assert study.question
    assert study.budget
    built = set()
    for variant in study.variants:
        recipe = study.run_recipe(variant, study.seeds[-1])
        assert recipe.seed == study.seeds[-1]
        settings = str(recipe.settings.model)
        if settings not in built:
            with shapes_only():
                recipe.make_task(FACTS).build_network()
            built.add(settings)
    assert (
        all(study.opponents(variant) for variant in study.variants if variant != study.baseline) or not study.baseline
    )


def test_the_papers_questions_are_there_and_are_no_recipes():
    asked = {"kernels", "components", "masks", "readings", "baselines", "budget", "components_detection"}
    assert asked <= set(study_names())
    assert not [name for name in recipe_names() if "studies" in name]


def test_a_run_has_what_is_common_then_its_own_then_what_was_given():
    study = parse_study(
        {**SMALL, "common": {"training.epochs": 5, "data.held_out": 0.1}}, "small", ["data.held_out=0.2"]
    )
    first, second = (study.run_recipe(name, seed=3) for name in ("one", "two"))
    assert (first.training.epochs, second.training.epochs) == (5, 7)
    assert first.settings.data.held_out == second.settings.data.held_out == 0.2
    assert (first.seed, second.settings.model.kernel) == (3, "softmax")
    assert small(variants={"mine": {"recipe": "digits/softmax"}}).run_recipe("mine", 0) == load_recipe("digits/softmax")


def test_who_is_compared_with_whom():
    variants = {"a": None, "b": None, "c": {"against": "b"}, "d": {"against": ["b", "a"]}}
    study = small(variants=variants, baseline="a")
    assert {name: study.opponents(name) for name in study.variants} == {
        "a": (),
        "b": ("a",),
        "c": ("b",),
        "d": ("b", "a"),
    }
    assert small(variants=variants).opponents("b") == ()


def test_a_study_like_another_changes_what_it_says(tmp_path):
    (tmp_path / "first.yaml").write_text(yaml.safe_dump({**SMALL, "seeds": [4]}))
    (tmp_path / "second.yaml").write_text(f"like: {tmp_path / 'first.yaml'}\ntitle: Other\n")
    first, second = (load_study(tmp_path / f"{name}.yaml") for name in ("first", "second"))
    assert (second.name, second.title, second.seeds) == ("second", "Other", (4,))
    assert second.variants == first.variants
    (tmp_path / "third.yaml").write_text(f"like: {tmp_path / 'second.yaml'}\nseeds: [5]\n")
    third = load_study(tmp_path / "third.yaml")
    assert (third.title, third.seeds, third.variants) == ("Other", (5,), first.variants)


def test_studies_in_a_circle_are_refused(tmp_path):
    (tmp_path / "one.yaml").write_text(f"like: {tmp_path / 'two.yaml'}\n")
    (tmp_path / "two.yaml").write_text(f"like: {tmp_path / 'one.yaml'}\n")
    with pytest.raises(ValueError, match="like each other: one, two"):
        load_study(tmp_path / "one.yaml")


def test_studies_of_one_dataset_agree_on_what_they_share():
    for dataset in ("", "_imagenette"):
        shared = {}
        for name in ("forms", "kernels", "components", "readings", "budget"):
            for variant, recipe in load_study(name + dataset).recipes.items():
                assert shared.setdefault(variant, recipe) == recipe, (name, variant)


def test_the_papers_figure_of_a_variant():
    study = load_study("kernels")
    assert study.paper_figure("cosine_both") == 24.4
    assert study.paper_figure("cosine") is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"titel": "x"}, "unknown key 'titel': did you mean 'title'"),
        ({"variants": {}}, "a study compares one or more"),
        ({"variants": ["one"]}, r"variants is a mapping of names to variants; got \['one'\]"),
        ({"variants": {"a/b": None}}, "variants are named by letters, digits"),
        ({"variants": {"a": {"sett": {}}}}, r"unknown key 'variants\.a\.sett': did you mean 'set'"),
        ({"variants": {"a": 3}}, r"variants\.a must be a mapping of settings; got 3"),
        ({"variants": {"a": {"against": "a"}}}, r"unknown variants\.a\.against 'a'"),
        ({"baseline": "three"}, "unknown baseline 'three'"),
        ({"seeds": []}, r"seeds are different whole numbers from 0 on; got \[\]"),
        ({"seeds": [1, 1]}, "seeds are different whole numbers"),
        ({"pictures": 0}, "pictures must be at least 1; got 0"),
        ({"recipe": "digits/castlin"}, "variant one: unknown recipe 'digits/castlin'"),
        ({"common": {"training.epohcs": 3}}, r"variant one: unknown key 'training\.epohcs': did you mean 'epochs'"),
        ({"variants": {"a": {"paper": "MC"}}}, "paper must name the table and column"),
        (
            {"variants": {"a": {"paper": "MD"}}, "paper": {"table": "kernels", "column": "s_320_map"}},
            "unknown row of the paper's table kernels, column s_320_map 'MD'",
        ),
        (
            {"variants": {"a": None, "b": {"recipe": "pretraining/digits"}}},
            "variants of several tasks have no metric in common: classification, pretraining",
        ),
    ],
)
def test_what_is_no_study_is_refused_before_it_begins(changes, message):
    with pytest.raises(ValueError, match=f"study small.*{message}|{message}"):
        small(**changes)


def test_an_unknown_study_names_the_nearest():
    with pytest.raises(ValueError, match="unknown study 'kernel': did you mean 'kernels'"):
        load_study("kernel")


def test_the_cost_of_a_run():
    study = small(pictures=1000, common={"training.epochs": 3, "training.batch_size": 64})
    cost = forecast(study, "one")
    assert cost.steps == 3 * 15
    recipe = study.run_recipe("one", 0)
    network = recipe.make_task(FACTS).build_network()
    assert cost.macs == 3 * count_macs(network, torch.zeros(1, 1, 32, 32)).total * 64 * 45
    assert forecast(small(), "one").macs is None
    assert forecast(small(common={"training.max_steps": 5}), "one").steps == 5
