"""The pixel decoder that the ADE20K table's numbers point to: a transformer at stride 32, and a pyramid below it.

MaskFormer's pixel decoder with an encoder, which gives three maps and the masks' features; in Mask2Former it stands in
for deformable attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from castling.extras import import_extra
from castling.tasks.segmentation.fpn import conv_norm_act

NUM_SCALES = 3  # that the masked attention goes around in


class PositionedAttention(nn.Module):
    """Softmax attention whose queries and keys know their places; values do not.

    Args:
        dim: channels of the tokens.
        num_heads: heads; must divide `dim`.
    """

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qk, self.v, self.proj = nn.Linear(dim, 2 * dim), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Attend among tokens `(B, N, dim)` at these positions, `(B, N, dim)` or `(1, N, dim)`."""
        heads = (self.num_heads, -1)
        q, k = self.qk(x + positions).unflatten(-1, (2, *heads)).permute(2, 0, 3, 1, 4)  # (B, H, N, D) each
        v = self.v(x).unflatten(-1, heads).transpose(1, 2)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class EncoderLayer(nn.Module):
    """A layer of DETR's encoder: attention and MLP, each added and then normalised.

    Args:
        dim: channels of the tokens.
        num_heads: heads of the attention.
        ffn_dim: hidden channels of the MLP.
    """

    def __init__(self, dim: int, num_heads: int, ffn_dim: int) -> None:
        super().__init__()
        self.attn = PositionedAttention(dim, num_heads)
        self.norm1 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, ffn_dim), nn.ReLU(), nn.Linear(ffn_dim, dim))
        self.norm2 = nn.LayerNorm(dim)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Map tokens `(B, N, dim)` at these positions, `(B, N, dim)` or `(1, N, dim)`."""
        x = self.norm1(x + self.attn(x, positions))
        return self.norm2(x + self.mlp(x))


class EncoderFpn(nn.Module):
    """In place of transformers' `Mask2FormerPixelDecoder`: an encoder on the coarsest map, and finer ones added to it.

    Args:
        in_channels: the widths of the maps, the finest first.
        dim: the width of what comes out, that of masks' features included.
        num_layers: layers of the encoder.
        num_heads: heads of its attention.
        ffn_dim: hidden channels of its MLPs.

    Example:
        >>> decoder = EncoderFpn((8, 8, 8, 8), dim=32, num_layers=1, num_heads=2, ffn_dim=16)
        >>> found = decoder([torch.zeros(1, 8, 16 // 2**level, 16 // 2**level) for level in range(4)])
        >>> found.mask_features.shape[-2:], [tuple(x.shape[-2:]) for x in found.multi_scale_features]
        (torch.Size([16, 16]), [(2, 2), (4, 4), (8, 8)])
    """

    def __init__(self, in_channels: Sequence[int], dim: int, num_layers: int, num_heads: int, ffn_dim: int) -> None:
        super().__init__()
        modeling: Any = import_extra("transformers.models.mask2former.modeling_mask2former", "segmentation")
        self.result = modeling.Mask2FormerPixelDecoderOutput
        self.positions = modeling.Mask2FormerSinePositionEmbedding(dim // 2, normalize=True)
        self.project = nn.Conv2d(in_channels[-1], dim, kernel_size=1)
        self.encoder = nn.ModuleList(EncoderLayer(dim, num_heads, ffn_dim) for _ in range(num_layers))
        finer = in_channels[-2::-1]  # from the coarsest down
        self.laterals = nn.ModuleList(conv_norm_act(width, dim, kernel_size=1, act=False) for width in finer)
        self.outputs = nn.ModuleList(conv_norm_act(dim, dim) for _ in in_channels)
        self.mask_features = nn.Conv2d(dim, dim, kernel_size=3, padding=1)

    def forward(self, features: Sequence[Tensor], output_hidden_states: bool = False, **options: Any) -> Any:
        """Decode maps `(B, C, H, W)`, the finest first.

        Args:
            features: the maps.
            output_hidden_states: no matter; here because Mask2Former passes it.
            **options: likewise.

        Returns:
            transformers' `Mask2FormerPixelDecoderOutput`: `mask_features` `(B, dim, H, W)` of the finest size, and
            `multi_scale_features`, the three coarsest maps, the coarsest first.
        """
        coarsest = features[-1]
        x = self.outputs[0](self.encode(self.project(coarsest)))
        scales = [x]
        for lateral, output, finer in zip(self.laterals, self.outputs[1:], features[-2::-1], strict=True):
            x = output(lateral(finer) + F.interpolate(x, size=finer.shape[-2:], mode="nearest"))
            scales.append(x)
        return self.result(mask_features=self.mask_features(x), multi_scale_features=tuple(scales[:NUM_SCALES]))

    def encode(self, x: Tensor) -> Tensor:
        """The encoder on a map `(B, dim, H, W)`."""
        positions = self.positions(x.shape, x.device, torch.float32).flatten(2).mT.to(x.dtype)  # (B, N, dim)
        tokens = x.flatten(2).mT
        for layer in self.encoder:
            tokens = layer(tokens, positions)
        return tokens.mT.unflatten(2, x.shape[-2:])
