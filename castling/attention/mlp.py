"""The feed-forward block, with the depthwise convolution "in the middle of MLP layers" (Sec. 4.4) as an option."""

from __future__ import annotations

from collections.abc import Callable

import torch
from timm.layers import Mlp as TimmMlp
from timm.layers import register_notrace_module
from torch import Tensor, nn

from castling.attention.forms import prefix_joins_early
from castling.attention.grid import Grid, GridNote, depthwise_on_grid, resolve_grid
from castling.config import check_odd


@register_notrace_module  # in the graphs of torch.fx it is one node: its form depends on sizes
class Mlp(TimmMlp):
    """timm's MLP; between its two layers an optional k x k depthwise convolution on the token grid.

    The order is fc1, convolution, activation, fc2. Prefix tokens go around the convolution.

    Args:
        in_features: channels of the tokens.
        hidden_features: hidden channels; as many as `in_features` where None.
        act_layer: activation.
        drop: dropout after the activation and after fc2.
        conv_size: taps per axis, odd; 0 for no convolution.
        num_prefix_tokens: class, distillation and register tokens in front.

    Attributes:
        grid_note: the place where a network leaves the grid of the tokens, if its blocks cannot pass it to `forward`.

    Raises:
        ValueError: for an even `conv_size`.

    Example:
        >>> mlp = Mlp(64, 256, conv_size=5, num_prefix_tokens=1)
        >>> mlp(torch.randn(2, 1 + 6 * 8, 64), grid=(6, 8)).shape
        torch.Size([2, 49, 64])
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int | None = None,
        act_layer: Callable[[], nn.Module] = nn.GELU,
        drop: float = 0.0,
        conv_size: int = 0,
        num_prefix_tokens: int = 0,
    ) -> None:
        super().__init__(in_features, hidden_features, act_layer=act_layer, drop=drop)
        self.num_prefix_tokens = num_prefix_tokens
        self.grid_note = GridNote()
        self.conv: nn.Conv2d | None = None
        if conv_size:
            check_odd("conv_size", conv_size)
            hidden = self.fc1.out_features
            self.conv = nn.Conv2d(hidden, hidden, conv_size, groups=hidden, bias=False)

    def forward(self, x: Tensor, grid: Grid | None = None) -> Tensor:
        """Map tokens `(B, N, C)` one by one and, with the convolution, over their grid.

        Where no grid is given it is what the grid note says, or else a square. Where the note says that only some
        places have a token, the convolution sees zeros at the others.

        Raises:
            ValueError: if the convolution is there and the grid does not hold the tokens.
        """
        if self.conv is None:
            return super().forward(x)
        grid, visible = self.grid_note.places(grid)
        grid = resolve_grid(x.shape[1], grid, self.num_prefix_tokens, visible)
        hidden = self.fc1(x)
        patches = hidden[:, self.num_prefix_tokens :]
        patches = self.act(depthwise_on_grid(patches, self.conv.weight, grid, visible=visible))
        if not self.num_prefix_tokens:
            return self._second_layer(patches)
        prefix = self.act(hidden[:, : self.num_prefix_tokens])
        if prefix_joins_early(x.shape[1]):
            return self._second_layer(torch.cat([prefix, patches], dim=1))
        return torch.cat([self._second_layer(prefix), self._second_layer(patches)], dim=1)

    def _second_layer(self, hidden: Tensor) -> Tensor:
        return self.drop2(self.fc2(self.norm(self.drop1(hidden))))
