"""The feed-forward block, with the depthwise convolution "in the middle of MLP layers" (Sec. 4.4) as an option."""

from __future__ import annotations

from collections.abc import Callable

import torch
from timm.layers import Mlp as TimmMlp
from timm.layers import register_notrace_module
from torch import Tensor, nn

from castling.attention import native
from castling.attention.forms import prefix_joins_early
from castling.attention.grid import Grid, GridNote, depthwise_on_grid, resolve_grid
from castling.config import check_odd

BAND = 1024  # patches whose hidden channels stay in the cache


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
        weight, large = self.conv.weight, grid[0] * grid[1] > BAND
        if visible is None and large and isinstance(self.fc1, nn.Linear) and native.can_convolve(x, weight):
            return torch.cat([self._in_bands(image, weight, grid) for image in x.split(1)])
        hidden = self.fc1(x)
        if visible is None and native.can_convolve(hidden, weight):
            return self._second_layer(self._middle(hidden, weight, grid, self.num_prefix_tokens))
        patches = hidden[:, self.num_prefix_tokens :]
        patches = self.act(depthwise_on_grid(patches, weight, grid, visible=visible))
        if not self.num_prefix_tokens:
            return self._second_layer(patches)
        prefix = self.act(hidden[:, : self.num_prefix_tokens])
        if prefix_joins_early(x.shape[1]):
            return self._second_layer(torch.cat([prefix, patches], dim=1))
        return torch.cat([self._second_layer(prefix), self._second_layer(patches)], dim=1)

    def _in_bands(self, x: Tensor, weight: Tensor, grid: Grid) -> Tensor:
        """The same for one image, some rows of its grid at a time: what is between the layers stays in the cache."""
        (rows, columns), reach, out = grid, weight.shape[-1] // 2, torch.empty_like(x)
        step = max(BAND // columns, 2 * reach)
        starts = [0, *range(step, rows - reach, step)]  # the last band takes what would be too few for one
        hidden, num_read, num_written = x[:, :0], 0, 0
        for first, last in zip(starts, [*starts[1:], rows], strict=True):
            num_prefix, above = (0, reach) if first else (self.num_prefix_tokens, 0)
            end = self.num_prefix_tokens + min(last + reach, rows) * columns
            new = self.fc1(x[:, num_read:end])
            hidden = torch.cat([hidden[:, -2 * reach * columns :], new], dim=1) if first else new
            held = ((hidden.shape[1] - num_prefix) // columns, columns)
            tokens = self._middle(hidden, weight, held, num_prefix, (above, above + last - first))
            num_read, begin, num_written = end, num_written, num_written + tokens.shape[1]
            out[:, begin:num_written] = self._second_layer(tokens)
        return out

    def _middle(
        self, hidden: Tensor, weight: Tensor, grid: Grid, num_prefix_tokens: int, rows: tuple[int, int] | None = None
    ) -> Tensor:
        """Convolution and activation in native code."""
        gelu = type(self.act) is nn.GELU and self.act.approximate == "none"
        tokens = native.depthwise(hidden, weight, grid, num_prefix_tokens, gelu, rows)
        return tokens if gelu else self.act(tokens)

    def _second_layer(self, hidden: Tensor) -> Tensor:
        return self.drop2(self.fc2(self.norm(self.drop1(hidden))))
