"""Outputs of networks as trees of tensors: a tensor, or mappings and sequences of trees. All comparisons are here.

Every leaf has a name, the way to it: `boxes`, `levels.0`; a lone tensor is `output`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Tree = Any  # Tensor | Mapping[str, Tree] | Sequence[Tree]; mypy knows no recursive unions of protocols
LONE = "output"


def named_leaves(tree: Tree) -> dict[str, Tensor]:
    """The tensors of a tree by their names, in the order of the tree; what is None is left out.

    Raises:
        ValueError: for something else than tensors, mappings and sequences.

    Example:
        >>> x = torch.zeros(2)
        >>> list(named_leaves({"boxes": x, "levels": [x, x]})), list(named_leaves(x))
        (['boxes', 'levels.0', 'levels.1'], ['output'])
    """
    if isinstance(tree, Tensor):
        return {LONE: tree}
    found: dict[str, Tensor] = {}
    _walk(tree, "", found)
    return found


def leaves(tree: Tree) -> list[Tensor]:
    """The tensors of a tree in its order."""
    return list(named_leaves(tree).values())


def like(tree: Tree, tensors: Sequence[Tensor]) -> Tree:
    """A tree of the same form with other tensors, in its order: what an engine that knows only lists gives back.

    Raises:
        ValueError: if there are more or fewer tensors than the tree has.

    Example:
        >>> like({"a": torch.zeros(1), "b": [torch.zeros(1)]}, [torch.ones(1), torch.ones(2)])
        {'a': tensor([1.]), 'b': [tensor([1., 1.])]}
    """
    if len(tensors) != len(leaves(tree)):
        raise ValueError(f"a tree of {len(leaves(tree))} tensors cannot be made of {len(tensors)}")
    return _rebuild(tree, iter(tensors))


def finite_examples(tree: Tree) -> Tensor:
    """Whether all outputs of each example of a batch are finite `(N,)`.

    Example:
        >>> finite_examples({"a": torch.zeros(2, 3), "b": torch.tensor([[1.0], [float("nan")]])})
        tensor([ True, False])
    """
    found = [leaf.isfinite().reshape(len(leaf), -1).all(1) for leaf in leaves(tree)]
    return torch.stack(found).all(0)


def all_finite(tree: Tree) -> bool:
    """Whether all numbers of a tree are finite."""
    return all(bool(leaf.isfinite().all()) for leaf in leaves(tree))


def absolute_differences(found: Tree, wanted: Tree) -> Tensor:
    """The absolute differences of all numbers of two trees, one flat tensor in float32.

    Raises:
        ValueError: if names or shapes differ; says which.

    Example:
        >>> absolute_differences([torch.zeros(2)], [torch.tensor([1.0, -2.0])])
        tensor([1., 2.])
    """
    ours, theirs = named_leaves(found), named_leaves(wanted)
    if list(ours) != list(theirs):
        raise ValueError(f"outputs have other names: {list(ours)} and {list(theirs)}")
    for name, tensor in ours.items():
        if tensor.shape != theirs[name].shape:
            raise ValueError(f"{name} has the shape {tuple(tensor.shape)}, not {tuple(theirs[name].shape)}")
    parts = [(tensor.float() - theirs[name].float()).abs().flatten() for name, tensor in ours.items()]
    return torch.cat(parts) if parts else torch.zeros(0)


def _walk(tree: Tree, name: str, found: dict[str, Tensor]) -> None:
    if isinstance(tree, Tensor):
        found[name] = tree
    elif isinstance(tree, Mapping):
        for key, branch in tree.items():
            _walk(branch, f"{name}.{key}" if name else str(key), found)
    elif isinstance(tree, (list, tuple)):
        for place, branch in enumerate(tree):
            _walk(branch, f"{name}.{place}" if name else str(place), found)
    elif tree is not None:
        raise ValueError(f"outputs must be tensors, mappings and sequences of them; got {type(tree).__name__}")


def _rebuild(tree: Tree, rest: Any) -> Tree:
    if isinstance(tree, Tensor):
        return next(rest)
    if isinstance(tree, Mapping):
        return {key: _rebuild(branch, rest) for key, branch in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [_rebuild(branch, rest) for branch in tree]
    return None
