"""Tells transformers of our networks as soon as somebody imports it, and not before: it takes seconds to load.

A class of transformers' `Auto` machinery is told right behind the module that defines it. Whatever was imported before
`castling` is told at once.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

# Modules of transformers, and the function of `castling.hub.registration` that is called behind each.
PLACES = {
    "transformers.models.auto.configuration_auto": "register_config",
    "transformers.models.auto.image_processing_auto": "register_processor",
    "transformers.models.auto.modeling_auto": "register_models",
}


class Arrival(MetaPathFinder):
    """A finder that finds nothing by itself, and waits for some modules to be loaded by others."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The usual spec, with a loader that registers what belongs to the module."""
        if name not in PLACES:
            return None
        sys.meta_path.remove(self)
        try:
            spec = find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            spec.loader = _Registering(spec.loader, PLACES[name])
        return spec


class _Registering(Loader):
    """A module's own loader, and what is done behind it.

    Args:
        usual: the module's own.
        then: the name of a function of `castling.hub.registration`.
    """

    def __init__(self, usual: Loader, then: str) -> None:
        self.usual, self.then = usual, then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As usual."""
        return self.usual.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """As usual, and then ours."""
        module.__spec__.loader = module.__loader__ = self.usual  # type: ignore[union-attr]
        self.usual.exec_module(module)
        _register(self.then)


def _register(function: str) -> None:
    getattr(importlib.import_module("castling.hub.registration"), function)()


def wait_for_transformers() -> None:
    """Register now what is loaded already, and the rest when it comes; once in a process.

    Example:
        >>> wait_for_transformers()
        >>> sum(isinstance(finder, Arrival) for finder in sys.meta_path)
        1
    """
    if any(isinstance(finder, Arrival) for finder in sys.meta_path):
        return
    for module, function in PLACES.items():
        if module in sys.modules:
            _register(function)
    sys.meta_path.insert(0, Arrival())
