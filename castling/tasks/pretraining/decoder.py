"""The light decoder: draws all patches from the tokens of those that were seen, and is thrown away afterwards.

Its attention is linear as well and has no auxiliary branch, so that pretraining on large pictures stays affordable.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from castling.attention import CastlingAttention, Grid, Mlp
from castling.attention.grid import spread_tokens
from castling.config import AttentionConfig, KernelName
from castling.tasks.pretraining.patches import hidden_places

SHORTEST, LONGEST = 2 * math.pi, 2 * math.pi * 10_000  # wave lengths of the positions, in patches


@dataclass(frozen=True)
class DecoderConfig:
    """What comes behind the network that is pretrained. The defaults are MAE's.

    Args:
        dim: the width; a multiple of 4, for the positions.
        depth: the number of blocks.
        num_heads: heads; must divide `dim`.
        mlp_ratio: hidden channels of the MLPs over `dim`.
        kernel: the kernel of the attention; `softmax` beside a softmax network.

    Raises:
        ValueError: names the bad value.
    """

    dim: int = 512
    depth: int = 8
    num_heads: int = 16
    mlp_ratio: float = 4.0
    kernel: KernelName = "linear_angular"

    def __post_init__(self) -> None:
        if self.depth < 1 or self.mlp_ratio <= 0:
            raise ValueError(f"depth and mlp_ratio must be positive; got {self.depth} and {self.mlp_ratio}")
        if self.dim < 4 or self.dim % 4:
            raise ValueError(f"dim must be a positive multiple of 4; got {self.dim}")
        if self.num_heads < 1 or self.dim % self.num_heads:
            raise ValueError(f"num_heads must divide dim {self.dim}; got {self.num_heads}")


class Decoder(nn.Module):
    """From the tokens of some places to the pixels of all.

    Args:
        config: its sizes.
        encoder_dim: the width of the tokens.
        patch_dim: the numbers of a patch.
        num_prefix_tokens: class, distillation and register tokens in front.

    Example:
        >>> decoder = Decoder(DecoderConfig(16, 1, 2), encoder_dim=8, patch_dim=48, num_prefix_tokens=1)
        >>> decoder(torch.randn(2, 1 + 3, 8), torch.tensor([[0, 2, 5]] * 2), (2, 4)).shape
        torch.Size([2, 8, 48])
    """

    def __init__(self, config: DecoderConfig, encoder_dim: int, patch_dim: int, num_prefix_tokens: int) -> None:
        super().__init__()
        self.num_prefix_tokens = num_prefix_tokens
        self.embed = nn.Linear(encoder_dim, config.dim)
        self.mask_token = nn.Parameter(torch.empty(config.dim))
        self.blocks = nn.ModuleList(DecoderBlock(config, num_prefix_tokens) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.dim)
        self.predict = nn.Linear(config.dim, patch_dim)
        nn.init.normal_(self.mask_token, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor, visible: Tensor, grid: Grid) -> Tensor:
        """Draw.

        Args:
            tokens: the tokens of the prefix and of the places that were seen, `(B, prefix + Nv, encoder_dim)`.
            visible: these places, `(B, Nv)`.
            grid: rows and columns of all places.

        Returns:
            `(B, N, patch_dim)`.
        """
        prefix, seen = self.embed(tokens).split([self.num_prefix_tokens, visible.shape[1]], dim=1)
        num_places = grid[0] * grid[1]
        hidden = hidden_places(visible, num_places).unsqueeze(-1)
        places = torch.where(hidden, self.mask_token.to(seen.dtype), spread_tokens(seen, visible, num_places))
        places = places + sine_positions(grid, places.shape[-1]).to(places)
        x = torch.cat([prefix, places], dim=1)
        for block in self.blocks:
            x = block(x, grid)
        drawn: Tensor = self.predict(self.norm(x[:, self.num_prefix_tokens :]))
        return drawn


class DecoderBlock(nn.Module):
    """Attention and MLP, each behind a norm and around a shortcut.

    Args:
        config: sizes and kernel.
        num_prefix_tokens: tokens in front that are no part of the grid.
    """

    def __init__(self, config: DecoderConfig, num_prefix_tokens: int) -> None:
        super().__init__()
        attention = AttentionConfig(aux=False).with_kernel(config.kernel)
        self.norm1 = nn.LayerNorm(config.dim)
        self.attn = CastlingAttention(
            config.dim, config.num_heads, True, attention, num_prefix_tokens=num_prefix_tokens
        )
        self.norm2 = nn.LayerNorm(config.dim)
        self.mlp = Mlp(config.dim, round(config.dim * config.mlp_ratio))

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Tokens `(B, prefix + N, dim)` of this grid."""
        x = x + self.attn(self.norm1(x), grid=grid)
        return x + self.mlp(self.norm2(x))


def sine_positions(grid: Grid, dim: int) -> Tensor:
    """Sines and cosines of rows and columns: a position for each place of any grid, `(N, dim)`.

    Raises:
        ValueError: for a width that is no multiple of 4.

    Example:
        >>> sine_positions((2, 3), 8).shape, sine_positions((1, 1), 4).tolist()
        (torch.Size([6, 8]), [[0.0, 1.0, 0.0, 1.0]])
    """
    if dim % 4:
        raise ValueError(f"positions of sines need a width that 4 divides; got {dim}")
    lengths = SHORTEST * (LONGEST / SHORTEST) ** (torch.arange(dim // 4) / (dim // 4))
    rows, columns = torch.meshgrid(torch.arange(grid[0]), torch.arange(grid[1]), indexing="ij")
    angles = [2 * math.pi * axis.flatten()[:, None] / lengths for axis in (rows, columns)]
    return torch.cat([wave(angle) for angle in angles for wave in (torch.sin, torch.cos)], dim=1)
