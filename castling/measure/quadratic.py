"""The proof that a forward pass is linear in the number of tokens: no tensor in it has an N x N shape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from castling.attention import HeadMixer


class _ShapeRecorder(TorchDispatchMode):
    """Collects the operators whose result has two axes of length N or more, and fused softmax attention."""

    def __init__(self, num_tokens: int) -> None:
        super().__init__()
        self.num_tokens = num_tokens
        self.num_ignored = 0  # modules that are running and not looked into
        self.found: list[str] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.num_ignored:
            return result
        shapes = [tuple(tensor.shape) for tensor in tree_leaves(result) if isinstance(tensor, Tensor)]
        quadratic = [shape for shape in shapes if sum(length >= self.num_tokens for length in shape) >= 2]
        if "scaled_dot_product" in str(func):
            quadratic = shapes[:1]
        self.found += [f"{func} -> {shape}" for shape in quadratic]
        return result


def quadratic_tensors(run: Callable[[], object], num_tokens: int, ignored: Iterable[nn.Module] = ()) -> list[str]:
    """Operators of `run()` whose result has two axes of at least `num_tokens`.

    Choose more tokens than channels, or a weight matrix will look like an attention map. Fused softmax attention hides
    its map from the dispatcher and is listed whatever its shapes.

    Args:
        run: any forward or backward pass.
        num_tokens: the number of tokens, N.
        ignored: modules that are not looked into, such as attentions that are softmax on purpose.

    Returns:
        One line per operator with the shape of its result; empty if the pass is linear.

    Example:
        >>> x = torch.randn(100, 8)
        >>> quadratic_tensors(lambda: x.T @ x, 100), quadratic_tensors(lambda: x @ x.T, 100)
        ([], ['aten.mm.default -> (100, 100)'])
    """
    recorder = _ShapeRecorder(num_tokens)

    def enter(*call: object) -> None:
        recorder.num_ignored += 1

    def leave(*call: object) -> None:
        recorder.num_ignored -= 1

    hooks = [
        hook
        for module in ignored
        for hook in (module.register_forward_pre_hook(enter), module.register_forward_hook(leave, always_call=True))
    ]
    try:
        with recorder:
            run()
    finally:
        for hook in hooks:
            hook.remove()
    return recorder.found


@torch.no_grad()
def longest_sequence(model: nn.Module, images: Tensor) -> int:
    """The tokens of one image, as the longest sequence that a linear layer of its castling attentions sees.

    Other parts, such as a decoder with queries or with tokens of several scales, may see longer ones: taken for N, they
    would hide the attention maps of the backbone. A network without castling attention is taken as a whole.

    Args:
        model: a network.
        images: a batch `(B, C, H, W)`.

    Example:
        >>> longest_sequence(nn.Sequential(nn.Flatten(2), nn.Linear(64, 8)), torch.zeros(2, 3, 8, 8))
        3
    """
    attentions = [module for module in model.modules() if isinstance(module, HeadMixer)]
    within = {layer for attention in attentions for layer in attention.modules() if isinstance(layer, nn.Linear)}
    lengths = [1]
    hooks = [
        module.register_forward_pre_hook(lambda _, inputs: lengths.append(inputs[0].shape[:-1].numel()))
        for module in within or model.modules()
        if isinstance(module, nn.Linear)
    ]
    try:
        model(images)
    finally:
        for hook in hooks:
            hook.remove()
    return max(lengths) // len(images)
