"""JSON that every parser reads: it knows no NaN and no infinity, which Python would write all the same."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


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


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
