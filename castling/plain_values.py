"""Plain values, as JSON has them, held against type hints: whatever wrote them, a wrong one is named by its place.

Settings that people write are read by `castling.settings`, which takes `1e-2` in quotes for a number; these are written
by programs, many at a time, and are what they are.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from castling.sentences import shown

Kind = TypeVar("Kind")
NOTHING = type(None)


def from_plain(kind: type[Kind], values: object, place: str = "") -> Kind:
    """Make a dataclass of the mapping that `dataclasses.asdict` gave and JSON kept.

    Args:
        kind: a dataclass, whose fields may hold dataclasses, mappings and lists.
        values: its fields; those left out keep their defaults.
        place: the place where the mapping stands, for messages.

    Raises:
        ValueError: for an unknown or missing key, or a value of another type; names its place.

    Example:
        >>> @dataclasses.dataclass
        ... class Point:
        ...     x: int
        ...     name: str = ""
        >>> from_plain(Point, {"x": 3})
        Point(x=3, name='')
        >>> from_plain(Point, {"x": [3]}, "first")
        Traceback (most recent call last):
        ValueError: first.x must be a whole number; got [3]
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{place or kind.__name__} must be an object; got {shown(values)}")
    fields = {field.name: field for field in dataclasses.fields(cast(Any, kind)) if field.init}
    unknown = next((key for key in values if key not in fields), None)
    if unknown is not None:
        raise ValueError(f"{place or kind.__name__} has an unknown key {shown(unknown)}")
    for name, field in fields.items():
        if name not in values and field.default is field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{place or kind.__name__} lacks {name!r}")
    hints = _hints(cast(Any, kind))
    return kind(**{key: plain_value(value, hints[key], _join(place, key)) for key, value in values.items()})


def plain_value(value: Any, hint: Any, place: str) -> Any:
    """A value of a type; `null` becomes NaN where a number is wanted, which is how JSON has those that are not finite.

    Args:
        value: what JSON held.
        hint: its type.
        place: the place where it stands, for messages.

    Raises:
        ValueError: if it is of another type.

    Example:
        >>> plain_value({"a": [1, None]}, dict[str, list[float]], "heads")
        {'a': [1.0, nan]}
    """
    if hint is Any:
        return value
    if dataclasses.is_dataclass(hint):
        return from_plain(cast(Any, hint), value, place)
    if hint in _PLAIN:
        return _scalar(value, hint, place)
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None and NOTHING in inner:
            return None
        (kind,) = (kind for kind in inner if kind is not NOTHING)
        return plain_value(value, kind, place)
    if origin is Literal:
        if value not in inner:
            raise ValueError(f"{place} must be one of {', '.join(map(repr, inner))}; got {shown(value)}")
        return value
    if origin in (list, tuple, Sequence):
        return _sequence(value, origin, inner, place)
    if origin not in (dict, Mapping):
        raise TypeError(f"{place}: there is no plain value of the type {hint}")
    if not isinstance(value, Mapping):
        raise ValueError(f"{place} must be an object; got {shown(value)}")
    return {_key(key, inner[0], place): plain_value(item, inner[1], _join(place, key)) for key, item in value.items()}


_PLAIN = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def _scalar(value: Any, kind: type, place: str) -> Any:
    if kind is float:
        if value is None:
            return math.nan
        if type(value) in (int, float) and abs(value) != math.inf and _fits(value):
            return float(value)
    elif type(value) is kind and _fits(value):
        return value
    raise ValueError(f"{place} must be {_PLAIN[kind]}; got {shown(value)}")


def _fits(value: Any) -> bool:
    """Whether tensors and files can have it: JSON's whole numbers have no end."""
    return not isinstance(value, int) or -(2**63) <= value < 2**63


def _sequence(value: Any, origin: Any, inner: tuple[Any, ...], place: str) -> Any:
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{place} must be a list; got {shown(value)}")
    if origin is tuple and inner[-1] is not Ellipsis:
        if len(value) != len(inner):
            raise ValueError(f"{place} must be a list of {len(inner)}; got {shown(value)}")
        kinds: Sequence[Any] = inner
    else:
        kinds = [inner[0]] * len(value)
    items = [plain_value(item, kind, f"{place}[{i}]") for i, (item, kind) in enumerate(zip(value, kinds, strict=True))]
    return tuple(items) if origin is tuple else items


def _key(key: Any, kind: Any, place: str) -> Any:
    if kind is not int or type(key) is int:
        return key
    if not (isinstance(key, str) and key.isdecimal() and len(key) < 19):
        raise ValueError(f"{place} has numbers for keys; got {shown(key)}")
    return int(key)


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _join(place: str, key: object) -> str:
    key = shown(key)[1:-1] if isinstance(key, str) else shown(key)
    return f"{place}.{key}" if place else key
