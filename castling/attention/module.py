"""The attention block of Castling-ViT: Eq. 9 between two projections.

    out = normalise(kernel(q, k, v) + aux(q, k, v)) + local_conv(v)

The auxiliary branch is there until the block is castled; it is never tied to `.eval()`.
"""

from __future__ import annotations

from torch import Tensor, nn

from castling.attention.auxiliary import AuxiliarySoftmax
from castling.attention.grid import Grid
from castling.attention.heads import autocast_off, promote, smallest_norm, unit
from castling.attention.kernels import attend
from castling.attention.local_conv import GridConv, TokenConv
from castling.config import AttentionConfig


class CastlingAttention(nn.Module):
    """Linear attention with a local convolution and, until it is castled, a masked softmax branch.

    With no more than its first arguments it is the authors' released block. Parameters are named as in timm: `qkv`
    (rows q, k, v, each by head) and `proj`; `local_conv.weight` is the only new one.

    Args:
        dim: channels of the tokens.
        num_heads: heads; must divide `dim`.
        qkv_bias: whether the qkv projection has a bias.
        config: kernel, branch and convolution.
        num_prefix_tokens: class, distillation and register tokens in front, which a 2-D convolution leaves alone.
        attn_drop: dropout on attention maps, where there are any: the branch and the softmax kernel.
        proj_drop: dropout after the output projection.

    Attributes:
        aux: the auxiliary branch, None once castled.

    Raises:
        ValueError: if `num_heads` does not divide `dim`.

    Example:
        >>> import torch
        >>> attention = CastlingAttention(192, num_heads=3)
        >>> attention(torch.randn(2, 197, 192)).shape
        torch.Size([2, 197, 192])
        >>> attention.aux
        AuxiliarySoftmax(
          threshold=0.02, similarity='scaled_dot'
          (attn_drop): Dropout(p=0.0, inplace=False)
        )
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        qkv_bias: bool = False,
        config: AttentionConfig | None = None,
        *,
        num_prefix_tokens: int = 0,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        if num_heads < 1 or dim % num_heads:
            raise ValueError(f"num_heads must divide dim; got dim={dim}, num_heads={num_heads}")
        self.config = config = config or AttentionConfig()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.aux = (
            AuxiliarySoftmax(config.threshold, config.threshold_relative, config.aux_similarity, attn_drop)
            if config.aux
            else None
        )
        self.local_conv: TokenConv | GridConv | None = None
        if config.local_conv == "tokens":
            self.local_conv = TokenConv(num_heads, config.local_conv_size)
        elif config.local_conv == "grid":
            self.local_conv = GridConv(num_heads, config.local_conv_size, num_prefix_tokens)
        self.proj = nn.Linear(dim, dim)
        self.attn_drop = attn_drop
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: Tensor, grid: Grid | None = None) -> Tensor:
        """Attend among tokens.

        Args:
            x: tokens `(B, N, dim)`.
            grid: rows and columns of the tokens behind the prefix, for the 2-D convolution; a square where None.

        Returns:
            Tokens `(B, N, dim)`.

        Raises:
            ValueError: if a 2-D convolution is asked for and the grid does not hold the tokens.
        """
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).unbind(2)  # (B, N, H, D) each
        eps = smallest_norm(q.dtype)
        with autocast_off(x):
            out = attend(q, k, v, self.config.kernel, **self._kernel_options())
            if self.aux is not None:
                aux = self.aux(q, k, v)
                out = out + (unit(aux, eps) if self.config.output_norm == "aux" else aux)
            if self.config.output_norm == "joint":
                out = unit(promote(out), eps)
            if self.local_conv is not None:
                out = self.local_conv(promote(v), grid) + out  # this order keeps the tokens' layout: no copy below
            out = out.flatten(2).to(q.dtype)  # (B, N, dim)
        return self.proj_drop(self.proj(out))

    def _kernel_options(self) -> dict[str, object]:
        if self.config.kernel == "linear_angular":
            return {"value_term": self.config.value_term, "reduction": self.config.reduction}
        if self.config.kernel == "softmax":
            return {"dropout_p": self.attn_drop if self.training else 0.0}
        return {}
