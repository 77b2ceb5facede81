"""Mappings into dataclasses and back, strictly: what a recipe says, checked before anything starts.

A wrong key or value is an error that names its place, the nearest legal name and the legal ones.
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import jsonargparse
import yaml

from castling.config import check_choice
from castling.sentences import one_line, shown

Settings = TypeVar("Settings")
SCALARS = (bool, int, float, str)


LONGEST = 1500  # characters of what a section says: lists of legal names are long


def from_mapping(kind: type[Settings], values: Mapping[str, Any], place: str = "") -> Settings:
    """Make a dataclass from a nested mapping.

    Args:
        kind: a dataclass, whose fields may be dataclasses too.
        values: its fields; those left out keep their defaults.
        place: the place where the mapping stands in a larger one, for messages.

    Raises:
        ValueError: for an unknown key, a missing one, or a value of the wrong type or outside its range.

    Example:
        >>> from castling.config import AttentionConfig
        >>> from_mapping(AttentionConfig, {"threshold": "1e-2"}).threshold
        0.01
        >>> from_mapping(AttentionConfig, {"treshold": 0.1}, "model.attention")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: unknown key 'model.attention.treshold': did you mean 'threshold'? Legal: 'kernel', 'value_term', ...
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{place or kind.__name__} must be a mapping of settings; got {shown(values)}")
    fields = {field.name: field for field in dataclasses.fields(cast(Any, kind)) if field.init}
    hints = get_type_hints(kind)
    for key in values:
        check_choice("key", key, fields, shown=_join(place, key))
    missing = [
        name
        for name, field in fields.items()
        if name not in values and field.default is field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ValueError(f"missing {', '.join(_join(place, name) for name in missing)}")
    parsed = {key: _parse(hints[key], value, _join(place, key)) for key, value in values.items()}
    try:
        return kind(**parsed)
    except ValueError as error:
        sentence = one_line(error, LONGEST)
        raise ValueError(f"{place}: {sentence}" if place else sentence) from error


def to_mapping(settings: Any) -> dict[str, Any]:
    """A dataclass as a mapping that YAML and JSON can hold; `from_mapping` gives the same dataclass again."""
    return cast(dict[str, Any], _plain(dataclasses.asdict(settings)))


def with_overrides(values: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """A nested mapping with some values replaced.

    Args:
        values: the mapping, left as it is.
        overrides: `key=value` with dots between the keys; values are read as YAML.

    Raises:
        ValueError: for an override without `=`, or one that goes through a value that is no mapping.

    Example:
        >>> with_overrides({"training": {"epochs": 3}}, ["training.epochs=5", "seed=1"])
        {'training': {'epochs': 5}, 'seed': 1}
    """
    changes = []
    for override in overrides:
        path, equals, text = override.partition("=")
        if not equals or not all(path.strip().split(".")):
            raise ValueError(f"expected key=value, such as training.epochs=10; got {override!r}")
        changes.append((path.strip(), _load_yaml(text, f"the value of {override!r}")))
    return with_changes(values, changes)


def with_changes(values: Mapping[str, Any], changes: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """A nested mapping with some values replaced, in this order.

    Args:
        values: the mapping, left as it is.
        changes: paths, with dots between the keys, and their new values; mappings and lists replace the old one whole.

    Raises:
        ValueError: for a path with an empty key, or one that goes through a value that is no mapping.

    Example:
        >>> with_changes({"training": {"epochs": 3}}, [("training.epochs", 5), ("model", {"name": "vit"})])
        {'training': {'epochs': 5}, 'model': {'name': 'vit'}}
    """
    result = cast(dict[str, Any], _plain(values))
    for path, value in changes:
        keys = path.split(".")
        if not all(keys):
            raise ValueError(f"expected the path of a setting, such as training.epochs; got {path!r}")
        target = result
        for key in keys[:-1]:
            if target.get(key) is None:
                target[key] = {}
            target = target[key]
            if not isinstance(target, dict):
                raise ValueError(f"{path!r} goes through {key!r}, which is {target!r} and holds no settings")
        target[keys[-1]] = _plain(value)
    return result


def read_yaml(text: str | bytes, name: str) -> dict[str, Any]:
    """The mapping that a YAML text holds.

    Raises:
        ValueError: if it is no YAML, has a key twice or aliases, or holds something other than a mapping.
    """
    values = _load_yaml(text, name)
    if not isinstance(values, dict):
        raise ValueError(f"{name} must hold a mapping of settings; got {type(values).__name__}")
    return values


class _StrictLoader(yaml.SafeLoader):
    """YAML without a key given twice, of which one would be lost, and without aliases, which make small files huge."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise yaml.MarkedYAMLError(None, None, "aliases are not for settings: write it out", event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and keys.count(key.value) > 1:
                raise yaml.MarkedYAMLError(None, None, f"{key.value!r} is given twice", key.start_mark)
        return cast(dict[Any, Any], super().construct_mapping(node, deep=deep))


def _load_yaml(text: str | bytes, name: str) -> Any:
    try:
        return yaml.load(text, _StrictLoader)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a number of too many digits, a date that is none
        raise ValueError(f"{name} is no YAML: {one_line(error)}") from error
    except RecursionError as error:
        raise ValueError(f"{name} is no YAML for settings: it is nested too deeply") from error


def _parse(hint: Any, value: Any, place: str) -> Any:
    if get_origin(hint) in (Union, types.UnionType) and type(None) in get_args(hint):
        if value is None:
            return None
        hint = Union[tuple(kind for kind in get_args(hint) if kind is not type(None))]  # noqa: UP007
    if dataclasses.is_dataclass(hint):
        return from_mapping(cast(Any, hint), value, place)
    if get_origin(hint) is Literal:
        check_choice(place, "no" if value is False and "no" in get_args(hint) else value, get_args(hint))
        return "no" if value is False else value  # YAML reads a bare no as false
    try:
        if value is None or not _has_texts_for_keys(hint, value):  # which jsonargparse takes for any type, and key
            raise ValueError
        parsed = value if type(value) is hint and hint in SCALARS else _as_type(hint, value)
    except Exception as error:
        raise ValueError(f"{place} must be of type {_type_name(hint)}; got {shown(value)}") from error
    if not _is_finite(parsed):
        raise ValueError(f"{place} must be finite; got {shown(value)}")
    return parsed


def _as_type(hint: Any, value: Any) -> Any:
    """What jsonargparse makes of a value, such as a number of a text."""
    if _has_aliases(value):  # which it would follow: a short text could become a huge value
        raise ValueError
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--value", type=hint)
    return parser.parse_object({"value": _plain(value)}).value  # a copy: it parses strings in place


def _has_texts_for_keys(hint: Any, value: Any) -> bool:
    wanted = get_origin(hint) is dict and get_args(hint)[0] is str and isinstance(value, Mapping)
    return not wanted or all(isinstance(key, str) for key in value)


def _has_aliases(value: Any) -> bool:
    if isinstance(value, str):
        return re.search(r"&\w+\s.*\*\w", value, re.DOTALL) is not None
    if isinstance(value, Mapping):
        return any(map(_has_aliases, [*value.keys(), *value.values()]))
    return isinstance(value, (list, tuple)) and any(map(_has_aliases, value))


def _is_finite(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_finite, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _join(place: str, key: object) -> str:
    return f"{place}.{key}" if place else str(key)


def _type_name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)
