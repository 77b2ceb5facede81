"""Linear layers as oneDNN multiplies them, for inference on CPUs.

torch gives its products to MKL, which uses half of what some processors can do; oneDNN, which torch brings along for
convolutions, uses the widest instructions of all of them, and reads the same weights where they lie.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from timm.layers import register_notrace_module
from torch import Tensor, nn

from castling.attention.forms import native_passes

FEWEST_MACS = 2**22  # fewer take less time than it takes oneDNN to begin


@register_notrace_module  # its form depends on sizes
class FastLinear(nn.Linear):
    """A linear layer, of the same parameters and outputs as torch's."""

    def forward(self, input: Tensor) -> Tensor:
        """Map features as torch's does, by oneDNN where nothing records or watches and there is enough to do."""
        plain = native_passes(input, self.weight) and torch.backends.mkldnn.is_available()
        if not plain or input.numel() * self.out_features < FEWEST_MACS:
            return F.linear(input, self.weight, self.bias)
        return torch.ops.mkldnn._linear_pointwise(input, self.weight, self.bias, "none", [], "")


def fast_linear(layer: nn.Linear) -> FastLinear:
    """The layer with the same parameters, which are not copied."""
    with torch.device("meta"):
        fast = FastLinear(layer.in_features, layer.out_features, bias=layer.bias is not None)
    fast.weight, fast.bias = layer.weight, layer.bias
    return fast.train(layer.training)
