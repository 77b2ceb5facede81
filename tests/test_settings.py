import json
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
import yaml

from castling.settings import from_mapping, read_yaml, to_mapping, with_overrides
from castling.training.config import TrainingConfig


@dataclass(frozen=True)
class Pace:
    rate: float = 0.1
    kind: Literal["slow", "fast"] = "slow"

    def __post_init__(self):
        if self.rate < 0:
            raise ValueError(f"rate must be at least 0; got {self.rate}")


@dataclass(frozen=True)
class Journey:
    days: int
    pace: Pace = field(default_factory=Pace)
    detour: Pace | None = None
    return_trip: bool = False
    span: tuple[float, float] = (0.0, 1.0)
    stops: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    title: str = ""
    budget: float | None = None


def test_what_is_left_out_keeps_its_default():
    assert from_mapping(Journey, {"days": 3, "pace": {"kind": "fast"}}) == Journey(3, Pace(0.1, "fast"))


def test_unknown_key_is_named_with_its_place_and_the_nearest():
    with pytest.raises(
        ValueError, match=r"unknown key 'trip\.pace\.raet': did you mean 'rate'\? Legal: 'rate', 'kind'"
    ):
        from_mapping(Journey, {"days": 3, "pace": {"raet": 1.0}}, "trip")
    with pytest.raises(ValueError, match=r"unknown key 'pase': did you mean 'pace'\?"):
        from_mapping(Journey, {"days": 3, "pase": {}})
    with pytest.raises(ValueError, match=r"unknown key '7': Legal: 'days'"):
        from_mapping(Journey, {"days": 3, 7: 7})


def test_missing_key_is_named_with_its_place():
    with pytest.raises(ValueError, match=r"missing trip\.days$"):
        from_mapping(Journey, {"title": "x"}, "trip")
    with pytest.raises(ValueError, match=r"missing days$"):
        from_mapping(Journey, {})


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("days", "many", "int"),
        ("days", 2.5, "int"),
        ("days", True, "int"),
        ("days", [3], "int"),
        ("return_trip", "perhaps", "bool"),
        ("return_trip", 1, "bool"),
        ("span", 0.5, r"tuple\[float, float\]"),
        ("span", [0.5], r"tuple\[float, float\]"),
        ("span", [0.5, 1.0, 2.0], r"tuple\[float, float\]"),
        ("span", [0.5, "far"], r"tuple\[float, float\]"),
        ("stops", "here", r"list\[str\]"),
        ("stops", [1], r"list\[str\]"),
        ("options", [1], r"dict\[str, .*Any\]"),
        ("options", "fast", r"dict\[str, .*Any\]"),
        ("options", {None: 1}, r"dict\[str, .*Any\]"),
        ("options", {1: 1}, r"dict\[str, .*Any\]"),
        ("title", 5, "str"),
        ("budget", "much", "float"),
        ("budget", True, "float"),
    ],
)
def test_value_of_the_wrong_type_is_named_with_its_place(key, value, kind):
    with pytest.raises(ValueError, match=rf"^trip\.{key} must be of type {kind}; got "):
        from_mapping(Journey, {"days": 3, key: value}, "trip")


@pytest.mark.parametrize("key", ["days", "return_trip", "span", "stops", "options", "title"])
def test_null_is_of_the_wrong_type_where_it_is_not_optional(key):
    with pytest.raises(ValueError, match=rf"^trip\.{key} must be of type .*; got None"):
        from_mapping(Journey, {"days": 3, key: None}, "trip")


def test_section_that_is_no_mapping_is_named():
    for value in (3, None, ["rate"]):
        with pytest.raises(ValueError, match=r"^trip\.pace must be a mapping of settings; got "):
            from_mapping(Journey, {"days": 3, "pace": value}, "trip")
    with pytest.raises(ValueError, match=r"^Journey must be a mapping"):
        from_mapping(Journey, "days")


def test_floats_may_be_whole_or_written_with_an_exponent():
    # YAML 1.1 reads 1e-3, which has no dot, as a string.
    values = yaml.safe_load("{days: 3, pace: {rate: 1e-3}, span: [1e-2, 2], budget: 5}")
    journey = from_mapping(Journey, values)
    assert (journey.pace.rate, journey.span, journey.budget) == (0.001, (0.01, 2.0), 5.0)
    assert isinstance(journey.budget, float)
    assert isinstance(journey.span, tuple)


def test_choice_is_named_with_its_place_and_the_nearest():
    with pytest.raises(
        ValueError, match=r"unknown trip\.pace\.kind 'fats': did you mean 'fast'\? Legal: 'slow', 'fast'"
    ):
        from_mapping(Journey, {"days": 3, "pace": {"kind": "fats"}}, "trip")


@pytest.mark.parametrize("written", ["no", "'no'"])
def test_bare_no_is_a_choice_where_no_is_one(written):
    assert from_mapping(TrainingConfig, read_yaml(f"mixed_precision: {written}", "x")).mixed_precision == "no"


def test_bare_no_is_no_choice_elsewhere():
    with pytest.raises(ValueError, match=r"unknown pace\.kind False"):
        from_mapping(Journey, read_yaml("{days: 3, pace: {kind: no}}", "x"))


def test_optional_section_is_null_or_given():
    assert from_mapping(Journey, {"days": 3, "detour": None}).detour is None
    assert from_mapping(Journey, {"days": 3, "detour": {"rate": 2}}).detour == Pace(2.0)
    with pytest.raises(ValueError, match=r"unknown key 'detour\.rates': did you mean 'rate'"):
        from_mapping(Journey, {"days": 3, "detour": {"rates": 2}})


def test_what_a_section_refuses_is_said_with_its_place():
    with pytest.raises(ValueError, match=r"^trip\.pace: rate must be at least 0; got -1"):
        from_mapping(Journey, {"days": 3, "pace": {"rate": -1}}, "trip")
    with pytest.raises(ValueError, match=r"^rate must be at least 0"):
        from_mapping(Pace, {"rate": -1})


def test_from_mapping_leaves_the_mapping_as_it_was():
    values = {"days": 3, "stops": ["1"], "options": {"depth": "1e3", "deep": {"list": ["2"]}}}
    before = json.dumps(values)
    from_mapping(Journey, values)
    assert json.dumps(values) == before


def test_training_settings_survive_yaml_and_json():
    given = {
        "epochs": 7,
        "optimizer": {"name": "lamb", "layer_decay": 0.75, "options": {"betas": [0.9, 0.95]}},
        "learning_rate": {"kind": "exponential", "peak": 2.0},
        "threshold": {"kind": "linear", "start": 0.02, "until": 0.8},
        "ema_decay": 0.99,
        "trackers": ["tensorboard"],
    }
    config = from_mapping(TrainingConfig, given)
    assert config.threshold(0.8) == 1.0
    mapping = to_mapping(config)
    assert mapping["threshold"] == {"kind": "linear", "start": 0.02, "end": 1.0, "since": 0.0, "until": 0.8}
    assert mapping["mixed_precision"] == "no"
    for copied in (yaml.safe_load(yaml.safe_dump(mapping)), json.loads(json.dumps(mapping))):
        assert from_mapping(TrainingConfig, copied) == config


def test_tuples_become_lists_and_come_back():
    journey = Journey(3, span=(0.2, 0.4))
    assert to_mapping(journey)["span"] == [0.2, 0.4]
    assert from_mapping(Journey, to_mapping(journey)) == journey


def test_overrides_replace_and_make_nested_values():
    values = {"training": {"epochs": 3, "workers": 2}, "threshold": None}
    overrides = ["training.epochs=5", "threshold.end=1", "model.options.depth=2", "seed=1"]
    assert with_overrides(values, overrides) == {
        "training": {"epochs": 5, "workers": 2},
        "threshold": {"end": 1},
        "model": {"options": {"depth": 2}},
        "seed": 1,
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[1, 2.5]", [1, 2.5]),
        ("null", None),
        ("", None),
        ("{a: 1}", {"a": 1}),
        ("a=b", "a=b"),
        ("true", True),
        ("/some/where", "/some/where"),
    ],
)
def test_overrides_are_read_as_yaml(text, value):
    assert with_overrides({"key": 0}, [f"key={text}"]) == {"key": value}


def test_later_override_wins():
    assert with_overrides({}, ["a.b=1", "a.b=2"]) == {"a": {"b": 2}}


def test_overrides_leave_the_mapping_as_it_was():
    values = {"training": {"epochs": 3}, "stops": [{"name": "a"}]}
    changed = with_overrides(values, ["training.epochs=5"])
    changed["stops"][0]["name"] = "b"
    assert values == {"training": {"epochs": 3}, "stops": [{"name": "a"}]}


@pytest.mark.parametrize("override", ["epochs", "=3", "training.=3", ".epochs=3", "training..epochs=3", ""])
def test_malformed_override_is_named(override):
    with pytest.raises(ValueError, match=rf"expected key=value, such as .*; got '{override}'"):
        with_overrides({}, [override])


def test_override_that_is_no_yaml_is_named():
    with pytest.raises(ValueError, match=r"the value of 'a=\[1' is no YAML"):
        with_overrides({}, ["a=[1"])


def test_override_through_a_value_is_refused():
    with pytest.raises(ValueError, match=r"'a\.b\.c' goes through 'b', which is 3 and holds no settings"):
        with_overrides({"a": {"b": 3}}, ["a.b.c=1"])


def test_read_yaml_gives_the_mapping():
    assert read_yaml("a: {b: [1, 2]}", "x.yaml") == {"a": {"b": [1, 2]}}


@pytest.mark.parametrize(("text", "kind"), [("- 1", "list"), ("", "NoneType"), ("word", "str")])
def test_yaml_that_holds_no_mapping_is_named(text, kind):
    with pytest.raises(ValueError, match=rf"x\.yaml must hold a mapping of settings; got {kind}"):
        read_yaml(text, "x.yaml")


@pytest.mark.parametrize("text", ["a: [1", "a: b: c", "\ta: 1", "a: !!python/object/apply:os.getcwd []"])
def test_broken_yaml_is_named(text):
    with pytest.raises(ValueError, match=r"x\.yaml is no YAML"):
        read_yaml(text, "x.yaml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: {c: 1, d: 2, c: 3}", "'c' is given twice"),
        ("a: &x [1, 2]\nb: *x", "aliases are not for settings"),
        ("a: &a {b: &b [*a, *a]}", "aliases are not for settings"),
        ("a: " + "[" * 5000, "nested too deeply"),
        ("a: 2001-99-99", "month must be in"),
        (b"a: \xff\xfe", "is no YAML"),
    ],
)
def test_yaml_that_would_lose_or_grow_is_refused(text, said):
    with pytest.raises(ValueError, match=said):
        read_yaml(text, "x.yaml")


@pytest.mark.parametrize("value", [float("inf"), float("nan"), float("-inf")])
def test_numbers_are_finite(value):
    for key, given in (("budget", value), ("span", [0.0, value]), ("pace", {"rate": value})):
        with pytest.raises(ValueError, match=rf"trip\.{key}(\.rate)? must be finite; got "):
            from_mapping(Journey, {"days": 1, key: given}, "trip")
    with pytest.raises(ValueError, match=r"trip\.options must be finite"):
        from_mapping(Journey, {"days": 1, "options": {"deep": [float("inf")]}}, "trip")
