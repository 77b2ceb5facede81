"""The form of a network's outputs: its tree, with the name that each tensor has in a file in the tensor's place.

Engines know lists of tensors only; the form, kept in the file, makes a tree of them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from torch import Tensor

from castling.measure.trees import LONE, Tree, like, named_leaves
from castling.sentences import shown

Form = Any  # str | Mapping[str, Form] | Sequence[Form] | None: a tree of names, as JSON holds it


def form_of(tree: Tree, names: Sequence[str] = ()) -> Form:
    """The form of a tree of tensors.

    Args:
        tree: the outputs of a network.
        names: a name for each of its tensors, in order; by default the tree's own.

    Raises:
        ValueError: for more or fewer names than tensors, or a name that comes twice.

    Example:
        >>> import torch
        >>> x = torch.zeros(1)
        >>> form_of(x), form_of({"levels": [x, x]}), form_of({"a": x, "b": x}, ("boxes", "scores"))
        ('output', {'levels': ['levels.0', 'levels.1']}, {'a': 'boxes', 'b': 'scores'})
    """
    own = list(named_leaves(tree))
    names = list(names) or own
    if len(names) != len(own) or len(set(names)) != len(names):
        raise ValueError(f"outputs need one name each: the network gives {own}; got the names {names}")
    return like(tree, cast(Sequence[Tensor], names))


def form_by_name(names: Sequence[str]) -> Form:
    """The form where only the names in a file are known: by name, or a lone tensor.

    Example:
        >>> form_by_name(["output"]), form_by_name(["boxes", "scores"])
        ('output', {'boxes': 'boxes', 'scores': 'scores'})
    """
    return LONE if len(names) == 1 else {name: name for name in names}


def names_in(form: Form) -> tuple[str, ...]:
    """The names of a form, in the order of the outputs.

    Example:
        >>> names_in({"boxes": "boxes", "levels": ["p3", "p4"], "masks": None})
        ('boxes', 'p3', 'p4')
    """
    return tuple(_names(form))


def filled(form: Form, tensors: Iterable[Tensor]) -> Tree:
    """A tree of this form.

    Args:
        form: the tree of names.
        tensors: one tensor for each of its names, in order.

    Example:
        >>> import torch
        >>> filled({"boxes": "boxes", "masks": None}, [torch.ones(1)])
        {'boxes': tensor([1.]), 'masks': None}
    """
    return _filled(form, iter(tensors))


def _names(form: Form) -> Iterator[str]:
    if isinstance(form, str):
        yield form
    elif isinstance(form, (Mapping, list, tuple)):
        for branch in form.values() if isinstance(form, Mapping) else form:
            yield from _names(branch)
    elif form is not None:
        raise ValueError(f"a form of outputs has names in it; got {shown(form)}")


def _filled(form: Form, rest: Iterator[Tensor]) -> Tree:
    if isinstance(form, str):
        return next(rest)
    if isinstance(form, Mapping):
        return {key: _filled(branch, rest) for key, branch in form.items()}
    return None if form is None else [_filled(branch, rest) for branch in form]
