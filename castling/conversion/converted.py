"""The way from a host's softmax attention to castling attention, without a jump.

A converted attention gives `(1 - blend) * softmax + blend * castling`. At blend 0 it is its host, exactly; at blend 1
it is Eq. 9 and castles as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from castling.attention import Grid, HeadMixer, attend
from castling.attention.grid import GridNote
from castling.config import AttentionConfig, check_type
from castling.schedule import Schedule, ScheduleName

Observer = Callable[[Tensor, Tensor], None]


class ConvertedAttention(HeadMixer):
    """Stands in for a host's attention, around the host's own parameters. The base of every adapter's module.

    It takes over all parameters, buffers and submodules of the host, the same objects under the same names; the local
    convolution, which starts at zero, is the only new parameter. A subclass has the host's `forward`, made of those
    parts with `self.attend` between them.

    Args:
        host: the attention that it stands in for.
        num_heads: number of heads.
        config: kernel, branch and convolution.
        num_prefix_tokens: class, distillation and register tokens in front, which a 2-D convolution leaves alone.
        attn_drop: dropout on attention maps.

    Attributes:
        blend: weight of castling attention, from 0 to 1; set by `set_blend`. Of no effect once castled.
        castled: whether castling attention stands alone, whatever the blend; set by `castle` and `castled`.
        head_scale: factors `(H,)` on castling attention, set by `calibrate`; None before, and then in no state dict.
        observer: listener, where set: it is called with the outputs of softmax and of castling attention, both
            `(B, Nq, H, Dv)`, and the softmax's output is passed on: to calibrate, or to train one to match the other.
        grid_note: the place where the grid of the tokens is left, for hosts that do not pass it.

    Raises:
        ValueError: if a name of the host's is taken.
    """

    blend: float
    castled: bool
    head_scale: Tensor | None

    def __init__(
        self,
        host: nn.Module,
        num_heads: int,
        config: AttentionConfig | None = None,
        num_prefix_tokens: int = 0,
        attn_drop: float = 0.0,
    ) -> None:
        super().__init__(num_heads, config, num_prefix_tokens, attn_drop)
        self.blend = 0.0
        self.castled = False
        self.register_buffer("head_scale", None)
        self.observer: Observer | None = None
        self.grid_note = GridNote()
        if self.local_conv is not None:
            nn.init.zeros_(self.local_conv.weight)
            weight = next(host.parameters())
            self.local_conv.to(weight.device, weight.dtype)
        self.train(host.training)  # the new parts; the host's own are as they are
        self._adopt(host)
        self._host = (host,)  # in a tuple: not a submodule, so no parameter has two names

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        grid: Grid | None = None,
        bias: Callable[[], Tensor] | None = None,
        subsample: Callable[[Tensor], Tensor] = lambda tokens: tokens,
        unpooled_v: Tensor | None = None,
    ) -> Tensor:
        """Both attentions by their weights; one whose weight is 0 is not computed.

        Args:
            q: queries `(B, Nq, H, D)`.
            k: keys `(B, N, H, D)`.
            v: values `(B, N, H, Dv)`.
            grid: rows and columns of the values, the unpooled ones where given; by default what the grid note says.
            bias: maker of the bias of the softmax logits, `(H, Nq, N)`; called only where there is a softmax.
            subsample: choice of the queries' places from `(B, N, H, Dv)`, where queries are fewer than values.
            unpooled_v: values before they were pooled to v.

        Returns:
            `(B, Nq, H, Dv)`.
        """
        blend = self.effective_blend
        needs_host = blend < 1 or self.observer is not None
        has_softmax = needs_host or self.aux is not None or self.config.kernel == "softmax"
        logit_bias = bias().to(q.dtype) if bias is not None and has_softmax else None
        if logit_bias is not None and logit_bias.ndim == 3:
            logit_bias = logit_bias.unsqueeze(0)  # the fused softmax takes no other
        grid = grid or self.grid_note.grid
        if needs_host:
            host = attend(q, k, v, "softmax", bias=logit_bias, dropout_p=self.attn_drop if self.training else 0.0)
            if blend == 0 and self.observer is None:
                return host
        q, k = self.placed(q, k, grid, subsample, None if unpooled_v is None else unpooled_v.shape[1])
        castling = self.mix(q, k, v, grid, logit_bias, subsample, unpooled_v)
        if self.head_scale is not None:
            castling = castling * self.head_scale.to(castling.dtype).unsqueeze(-1)
        if self.observer is not None:
            self.observer(host, castling)
            return host
        return torch.lerp(host, castling, blend) if needs_host else castling

    @property
    def effective_blend(self) -> float:
        """The blend, which is 1 once castled: so `castled` measures what `castle` would give at the end."""
        return 1.0 if self.castled else self.blend

    @property
    def output_projection(self) -> nn.Linear | None:
        """The layer that takes the heads' outputs as they are, and could hold a scale; None if something is between."""
        return None

    def clear_cache(self, host: Any) -> None:
        """Drop what the host keeps of earlier passes, as it leaves its place and as it comes back; nothing by default.

        This is the one change to a host. `__init__` must make none, as another attention may still fail to be built.
        """

    def release(self) -> nn.Module:
        """The host, with the parameters and submodules that stand here now."""
        (host,) = self._host
        self.clear_cache(host)
        for registry in ("_parameters", "_buffers", "_modules"):
            own, theirs = getattr(self, registry), getattr(host, registry)
            theirs.update({name: own[name] for name in theirs if name in own})
        host.training = self.training
        for name, module in host.named_children():
            if name not in self._modules:  # dropout, which did without this module's calls of train and eval
                module.train(self.training)
        return host

    def _adopt(self, host: nn.Module) -> None:
        for name, module in host._modules.items():
            # Dropout on the map is a number here; a layer without weights leaves no gap.
            if name not in vars(self) or (module is not None and module.state_dict()):
                self._check_free(name)
                self.register_module(name, module)
        for name, parameter in host._parameters.items():
            self._check_free(name)
            self.register_parameter(name, parameter)
        for name, buffer in host._buffers.items():
            self._check_free(name)
            self.register_buffer(name, buffer, persistent=name not in host._non_persistent_buffers_set)
        for name, value in vars(host).items():
            if value is None and not name.startswith("_") and not hasattr(self, name):
                setattr(self, name, None)  # a part that this host does without

    def _check_free(self, name: str) -> None:
        if hasattr(self, name):
            raise ValueError(f"the host has a part {name!r}, which is the name of a part of castling attention")

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Take the scale of a calibrated model into one that is not calibrated yet."""
        saved = state_dict.get(f"{prefix}head_scale")
        if saved is not None and self.head_scale is None:
            self.head_scale = torch.ones_like(saved, device=self._device())
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _device(self) -> torch.device:
        return next(self.parameters()).device

    def extra_repr(self) -> str:
        """What print shows."""
        return "castled" if self.castled else f"blend={self.blend:g}"


def converted_attentions(model: nn.Module) -> dict[str, ConvertedAttention]:
    """Converted attentions by name.

    Raises:
        ValueError: if there is none.
    """
    check_type("model", model, nn.Module, "a torch.nn.Module")
    found = {name: module for name, module in model.named_modules() if isinstance(module, ConvertedAttention)}
    if not found:
        raise ValueError(f"no converted attention in this {type(model).__name__}; castling.convert makes them")
    return found


def set_blend(model: nn.Module, blend: float) -> None:
    """Set the weight of castling attention in every converted attention.

    Args:
        model: a converted model.
        blend: the weight: 0 for the host's softmax alone, 1 for castling attention alone.

    Raises:
        ValueError: for a weight outside [0, 1] or a model without converted attention; nothing is changed then.

    Example:
        >>> from castling.conversion.replace import convert
        >>> model = convert(nn.TransformerEncoderLayer(32, 4, batch_first=True))
        >>> set_blend(model, 0.25)
        >>> model.self_attn.blend
        0.25
    """
    _check_blend(blend)
    for attention in converted_attentions(model).values():
        attention.blend = float(blend)


def check_blend_done(model: nn.Module) -> None:
    """Refuse a model whose outputs still hold the host's softmax: castling would change them without notice.

    Raises:
        ValueError: names the attentions.
    """
    named = model.named_modules()
    early = [name or "self" for name, m in named if isinstance(m, ConvertedAttention) and m.effective_blend < 1]
    if early:
        raise ValueError(
            f"{len(early)} converted attentions ({first_names(early)}) still hold the host's softmax. Train on with a "
            "blend that ends at 1, or set it: castling.set_blend(model, 1)"
        )


def first_names(names: Sequence[str], most: int = 3) -> str:
    """The first of many names, for a message.

    Example:
        >>> first_names(["a", "b"]), first_names(["a", "b", "c", "d"])
        ('a, b', 'a, b, c, ...')
    """
    shown = list(names[:most])
    return ", ".join(shown if len(names) <= most else [*shown, "..."])


@dataclass(frozen=True)
class BlendSchedule(Schedule):
    """A blend that moves from `start` to `end` between two points of training.

    Args:
        kind: `fixed`, `step`, `linear` or `cosine`, as `Schedule` has them.
        start: blend before `since`.
        end: blend from `until` on.
        since: share of training at which the movement begins.
        until: share of training at which it ends.

    Raises:
        ValueError: for an unknown kind, blends outside [0, 1], or shares that are not `0 <= since <= until <= 1`.

    Example:
        >>> [BlendSchedule(until=0.5)(progress) for progress in (0, 0.25, 0.9)]
        [0.0, 0.5, 1.0]
    """

    quantity = "blend"

    kind: ScheduleName = "linear"
    start: float = 0.0
    end: float = 1.0

    def check_value(self, value: float) -> None:
        """Refuse a blend outside [0, 1]."""
        _check_blend(value)


def _check_blend(blend: float) -> None:
    check_type("blend", blend, Real, "a number")
    if not 0 <= blend <= 1:
        raise ValueError(f"blend must lie in [0, 1], from softmax alone to castling attention alone; got {blend}")
