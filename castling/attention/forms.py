"""Which form runs: equations here have several forms with the same numbers, and who runs them decides between them.

The decisions stand here together because they must not contradict each other. An exporter is a compiler as well:
`is_compiling` holds for both.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import Parameter

FEW_TOKENS = 1024


def heads_at_once(q: Tensor) -> bool:
    """Whether an equation gets all heads `(..., H, N, D)` at once, and not one head `(..., N, D)` after the other.

    Both read the tokens where they lie only if a batched product has a single axis to run over: the heads of one image,
    or the images of one head. A GPU, where launches cost more than copies, and an exported graph, which engines lay out
    by themselves, get all heads at once.

    Args:
        q: queries `(..., N, H, D)`.

    Example:
        >>> heads_at_once(torch.empty(1, 196, 3, 64)), heads_at_once(torch.empty(2, 196, 3, 64))
        (True, False)
    """
    return torch.compiler.is_exporting() or not q.is_cpu or math.prod(q.shape[:-3]) == 1


def in_place(*tokens: Tensor) -> bool:
    """Whether results may be written over others: no compiler and no backward pass needs those.

    Args:
        *tokens: everything that the results are made from.

    Example:
        >>> in_place(torch.empty(2)), in_place(torch.empty(2), torch.empty(2, requires_grad=True))
        (True, False)
    """
    recorded = torch.is_grad_enabled() and any(x.requires_grad for x in tokens)
    return not torch.compiler.is_compiling() and not recorded


def products_in_place(*tokens: Tensor) -> bool:
    """Whether products of heads are written straight into the memory of tokens, which is a gain on a CPU only."""
    return tokens[0].is_cpu and in_place(*tokens)


def native_passes(*tokens: Tensor) -> bool:
    """Whether passes over tokens may run outside of torch: numbers on a CPU that nobody records, counts or traces.

    Args:
        *tokens: everything that the results are made from.

    Example:
        >>> native_passes(torch.empty(2)), native_passes(torch.empty(2, dtype=torch.float64))
        (True, False)
    """
    if torch.compiler.is_compiling() or any(type(x) not in (Tensor, Parameter) for x in tokens):
        return False
    if torch.jit.is_tracing() or torch.is_autocast_enabled("cpu") or torch._C._len_torch_dispatch_stack():
        return False
    return in_place(*tokens) and all(
        x.is_cpu and x.dtype == torch.float32 and not torch._C._functorch.is_functorch_wrapped_tensor(x) for x in tokens
    )


def prefix_joins_early(num_tokens: int) -> bool:
    """Whether prefix tokens join the others before the second layer of an MLP, and not behind it.

    Apart, a few tokens would read the weights of the layer twice. Many are cheaper to copy behind it, where they are
    narrow again. A compiler joins without a copy.

    Args:
        num_tokens: all tokens of an image.

    Example:
        >>> prefix_joins_early(197), prefix_joins_early(1025)
        (True, False)
    """
    return torch.compiler.is_compiling() or num_tokens <= FEW_TOKENS
