"""JSON that every parser reads: it knows no NaN and no infinity, which Python would write all the same.

What is read may be anybody's: whatever is wrong with it is said in one line that names the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from castling.sentences import one_line


def json_text(value: Any, indent: int | None = None) -> str:
    """A value as JSON; numbers that are not finite become `null`.

    Args:
        value: mappings, sequences, numbers, text.
        indent: the number of spaces per level; None for a single line.

    Example:
        >>> json_text({"loss": float("nan"), "steps": [1, float("inf")]})
        '{"loss": null, "steps": [1, null]}'
    """
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def parse_json(content: str | bytes, name: object) -> Any:
    """The value that a JSON text holds.

    Args:
        content: the text.
        name: what the text is called in messages, such as its path.

    Raises:
        ValueError: if it is no JSON, or nested too deeply.

    Example:
        >>> parse_json('{"steps": [1, 2', "log.json")
        Traceback (most recent call last):
        ValueError: log.json is not JSON: Expecting ',' delimiter: line 1 column 16 (char 15)
    """
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError(f"{name} is not JSON that is read: it is nested too deeply") from error
    except ValueError as error:  # no JSON, no text, or a number of too many digits
        raise ValueError(f"{name} is not JSON: {one_line(error)}") from error


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        ValueError: if there is no such file, or something else in it.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from error
    value = parse_json(content, path)
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold an object; got {type(value).__name__}")
    return value


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
