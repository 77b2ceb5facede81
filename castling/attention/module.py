"""The attention block of Castling-ViT: Eq. 9 between two projections.

    out = normalise(kernel(q, k, v) + aux(q, k, v)) + local_conv(v)

The auxiliary branch is there until the block is castled; it is never tied to `.eval()`.
"""

from __future__ import annotations

from collections.abc import Callable

from timm.layers import register_notrace_module
from torch import Tensor, nn

from castling.attention.auxiliary import AuxiliarySoftmax
from castling.attention.folded import FOLDED, folded_attention
from castling.attention.grid import Grid, GridNote, resolve_grid, with_prefix
from castling.attention.heads import autocast_off, inverse_norm, output_length, promote, smallest_norm, unit
from castling.attention.kernels import attend
from castling.attention.linear_angular import linear_angular_attention
from castling.attention.local_conv import GridConv, TokenConv, per_channel
from castling.attention.native import can_attend
from castling.attention.rotary import rotary_table, rotate
from castling.config import AttentionConfig


@register_notrace_module  # in the graphs of torch.fx an attention is one node: its form depends on sizes
class HeadMixer(nn.Module):
    """What happens between projections: tokens are mixed within each head. Every attention here is built on it.

    Args:
        num_heads: heads.
        config: kernel, branch and convolution.
        num_prefix_tokens: class, distillation and register tokens in front, which a 2-D convolution leaves alone.
        attn_drop: dropout on attention maps, where there are any: the branch and the softmax kernel.

    Attributes:
        aux: the auxiliary branch, None once castled.
        folded: whether `fold` made this the form for inference.
        head_dim: channels of a head's values, where a subclass tells.
    """

    def __init__(
        self, num_heads: int, config: AttentionConfig | None = None, num_prefix_tokens: int = 0, attn_drop: float = 0.0
    ) -> None:
        super().__init__()
        self.config = config = config or AttentionConfig()
        self.num_heads = num_heads
        self.num_prefix_tokens = num_prefix_tokens
        self.attn_drop = attn_drop
        self.folded = False
        self.head_dim: int | None = None
        self.aux: AuxiliarySoftmax | None = None
        if config.aux:
            self.aux = AuxiliarySoftmax(config.threshold, config.threshold_relative, config.aux_similarity, attn_drop)
        self.local_conv: TokenConv | GridConv | None = None
        if config.local_conv == "tokens":
            self.local_conv = TokenConv(num_heads, config.local_conv_size)
        elif config.local_conv == "grid":
            self.local_conv = GridConv(num_heads, config.local_conv_size, num_prefix_tokens)

    def fold(self) -> None:
        """Become the form for inference: the same outputs to rounding, from fewer passes over the tokens.

        Raises:
            ValueError: while the auxiliary branch is there.
        """
        if self.aux is not None:
            raise ValueError("an attention with its auxiliary branch cannot be folded: castle it first")
        self.folded = self.config.kernel in FOLDED and self.config.output_norm != "aux"
        if self.local_conv is not None and self.head_dim is not None:
            weight = per_channel(self.local_conv.weight.detach(), (self.num_heads, self.head_dim))
            self.local_conv.weight = nn.Parameter(weight.contiguous(), requires_grad=False)

    def mix(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        grid: Grid | None = None,
        bias: Tensor | None = None,
        subsample: Callable[[Tensor], Tensor] = lambda tokens: tokens,
        unpooled_v: Tensor | None = None,
        visible: Tensor | None = None,
        table: Tensor | None = None,
    ) -> Tensor:
        """Eq. 9 on token-major tensors.

        Args:
            q: queries `(B, Nq, H, D)`, already `placed`.
            k: keys `(B, N, H, D)`, likewise.
            v: values `(B, N, H, Dv)`.
            grid: rows and columns of the values, the unpooled ones where given.
            bias: summand of the logits of softmax, in the kernel or the branch, `(H, Nq, N)`; of no effect elsewhere.
            subsample: choice of the queries' places from tokens `(B, N, H, Dv)`, where queries are fewer than values.
            unpooled_v: values before they were pooled to v, the source of a query's own value and the convolution.
            visible: the places in the grid of the values behind the prefix `(B, Nv)`, where not all have one.
            table: cosines and sines of `turns`, by which the folded form is still to turn q and k.

        Returns:
            `(B, Nq, H, Dv)`, in the dtype of q.
        """
        config, eps = self.config, smallest_norm(q.dtype)
        local_v = v if unpooled_v is None else unpooled_v
        with autocast_off(q):
            if self.folded:
                tokens = promote(q), promote(k), promote(v), promote(subsample(local_v))
                local = taps = None
                if (
                    isinstance(self.local_conv, TokenConv)
                    and tokens[3] is v
                    and visible is None
                    and can_attend(q, k, v)
                ):
                    taps = per_channel(self.local_conv.weight.to(v.dtype), v.shape[-2:])
                elif self.local_conv is not None:
                    local = subsample(self.local_conv(promote(local_v), grid, visible))
                return folded_attention(*tokens, local, config, eps, table, taps).to(q.dtype)
            if config.kernel == "linear_angular":
                own_value = subsample(local_v)
                out = linear_angular_attention(
                    q, k, v, value_term=config.value_term, reduction=config.reduction, own_value=own_value
                )
            elif config.kernel == "softmax":
                out = attend(q, k, v, config.kernel, bias=bias, dropout_p=self.attn_drop if self.training else 0.0)
            else:
                out = attend(q, k, v, config.kernel)
            if self.aux is not None:
                aux = self.aux(q, k, v, bias)
                out = out + (unit(aux, eps) if config.output_norm == "aux" else aux)
            length = output_length(config.output_norm, out.shape[-1])
            if length is not None:
                out = promote(out)
                out = out * (inverse_norm(out, eps) * length)
            if self.local_conv is not None:
                # In this order the sum keeps the tokens' layout, and the output projection needs no copy.
                out = subsample(self.local_conv(promote(local_v), grid, visible)) + out
            return out.to(q.dtype)

    def placed(
        self,
        q: Tensor,
        k: Tensor,
        grid: Grid | None = None,
        subsample: Callable[[Tensor], Tensor] = lambda tokens: tokens,
        num_values: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys as `mix` wants them: turned by their places where positions are rotary.

        Args:
            q: queries `(B, Nq, H, D)`.
            k: keys `(B, N, H, D)`.
            grid: rows and columns of the values.
            subsample: choice of the queries' places from tokens, where queries are fewer than keys.
            num_values: the number of values before they were pooled; as many as keys where None.

        Raises:
            ValueError: for rotary positions of pooled keys, or of tokens that fill no grid.
        """
        if not self.config.rotary:
            return q, k
        if num_values not in (None, k.shape[1]):
            raise ValueError(f"rotary positions need a key for every value; got {k.shape[1]} and {num_values}")
        table = self.turns(k, grid)
        of_q = table if q.shape[1] == k.shape[1] else subsample(table)
        return rotate(q, of_q), rotate(k, table)

    def turns(self, k: Tensor, grid: Grid | None, visible: Tensor | None = None) -> Tensor:
        """Cosines and sines of the places of keys `(B, N, H, D)`, as `rotate` wants them."""
        grid = resolve_grid(k.shape[1], grid, self.num_prefix_tokens, visible)
        table = rotary_table(grid, k.shape[-1], self.num_prefix_tokens, promote(k))
        if visible is not None:
            table = table[:, with_prefix(visible, self.num_prefix_tokens)]  # (2, B, Nv, 1, D / 2)
        return table


class CastlingAttention(HeadMixer):
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
        grid_note: the place where a network leaves the grid of the tokens, if its blocks cannot pass it to `forward`.

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
        if num_heads < 1 or dim % num_heads:
            raise ValueError(f"num_heads must divide dim; got dim={dim}, num_heads={num_heads}")
        super().__init__(num_heads, config, num_prefix_tokens, attn_drop)
        self.head_dim = dim // num_heads
        self.grid_note = GridNote()
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False, grid: Grid | None = None
    ) -> Tensor:
        """Attend among tokens.

        Args:
            x: tokens `(B, N, dim)`.
            attn_mask: None; the argument is here because timm's blocks pass it.
            is_causal: False, for the same reason.
            grid: rows and columns of the tokens behind the prefix, for a 2-D convolution and rotary positions; by
                default what the grid note says, with the places of the tokens in it, or else a square.

        Returns:
            Tokens `(B, N, dim)`.

        Raises:
            ValueError: for a mask, or a grid that is needed and does not hold the tokens.
        """
        if attn_mask is not None or is_causal:
            raise ValueError("linear attention knows no masks; got attn_mask or is_causal")
        grid, visible = self.grid_note.places(grid)
        tokens = self.qkv(x).unflatten(-1, (3, self.num_heads, -1))  # (B, N, 3, H, D)
        q, k, v = tokens.unbind(2)
        table = self.turns(k, grid, visible) if self.config.rotary else None
        if table is not None and not (self.folded and visible is None and can_attend(q, k, v)):
            q, k = rotate(tokens[:, :, :2].flatten(2, 3), table).chunk(2, dim=2)  # in one pass, as heads of one tensor
            table = None
        return self.proj_drop(self.proj(self.mix(q, k, v, grid, visible=visible, table=table).flatten(2)))
