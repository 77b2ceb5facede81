"""Optional dependencies: imported where they are used, with an error that names the extra to install."""

from __future__ import annotations

import importlib
from types import ModuleType


def import_extra(module: str, extra: str) -> ModuleType:
    """Import an optional dependency.

    Args:
        module: the module's name.
        extra: the extra of this distribution that brings it.

    Raises:
        ImportError: says which extra to install.

    Example:
        >>> import_extra("no_such_module", "report")
        Traceback (most recent call last):
        ImportError: no_such_module is missing; install it with: pip install "castling-vit[report]"
    """
    package = module.partition(".")[0]
    try:
        importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ImportError(f'{package} is missing; install it with: pip install "castling-vit[{extra}]"') from error
    return importlib.import_module(module)
