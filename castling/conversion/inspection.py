"""What converting a model would do, attention by attention; nothing is changed.

Every attention that an adapter knows is replaced, or refused by the name of what stands in the way. Others that look
like one are listed too, so that nobody believes them converted.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from torch import nn

from castling.attention import HeadMixer
from castling.config import AttentionConfig, check_type
from castling.conversion.adapters import ADAPTERS, Adapter, Site, find_adapter

Action = Literal["replace", "keep", "refuse"]


@dataclass(frozen=True)
class LayerPreview:
    """One attention of the model.

    Args:
        name: its name in the model.
        kind: its class.
        family: the adapter that knows it, or None.
        action: `replace`; `keep` what no adapter knows or nobody asked for; `refuse` what cannot be converted.
        notes: reasons, or what to know.
    """

    name: str
    kind: str
    family: str | None
    action: Action
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ConversionPreview:
    """What `convert` would do; print it.

    Args:
        layers: all attentions in the order of the model.
    """

    layers: tuple[LayerPreview, ...]

    def names(self, action: Action) -> list[str]:
        """Names of the attentions to which this would happen."""
        return [layer.name for layer in self.layers if layer.action == action]

    def check(self) -> None:
        """Raise unless there is something to replace and nothing to refuse.

        Raises:
            ValueError: names what is refused, or lists the families that are supported.
        """
        refused: dict[str, list[str]] = {}
        for layer in self.layers:
            if layer.action == "refuse":
                refused.setdefault("; ".join(layer.notes), []).append(layer.name or "the model")
        if refused:
            lines = [f"{_and_more(names)}: {reason}" for reason, names in refused.items()]
            raise ValueError("cannot convert " + " | ".join(lines) + ". Nothing was changed")
        if not self.names("replace"):
            families = "; ".join(adapter.family for adapter in ADAPTERS)
            seen = ", ".join(sorted({layer.kind for layer in self.layers}))
            only = f", only {seen}" if seen else ""
            raise ValueError(
                f"found no attention to convert{only}. Supported: {families}. "
                "Others need an adapter: castling.conversion.adapters.register_adapter"
            )

    def __str__(self) -> str:
        rows = [("layer", "attention", "action", "notes")]
        rows += [(layer.name or "(self)", layer.kind, layer.action, "; ".join(layer.notes)) for layer in self.layers]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = ["  ".join([*map(str.ljust, row, widths), row[3]]).rstrip() for row in rows]
        counts = ", ".join(f"{len(self.names(action))} {action}" for action in ("replace", "keep", "refuse"))
        return "\n".join([*lines, counts])


def preview(
    model: nn.Module, config: AttentionConfig | None = None, only: str | Iterable[str] | None = None
) -> ConversionPreview:
    """Say what `convert` would do with each attention of a model.

    Args:
        model: any model; left as it is.
        config: kernel, branch and convolution; the authors' block where None.
        only: names of attentions, or patterns such as `blocks.[6-9].*`; all where None.

    Raises:
        ValueError: if a name or pattern fits no attention, with the nearest one.

    Example:
        >>> print(preview(nn.TransformerEncoderLayer(32, 4)))
        layer      attention           action   notes
        self_attn  MultiheadAttention  replace
        1 replace, 0 keep, 0 refuse
    """
    return ConversionPreview(tuple(layer for _, _, layer in survey(model, config or AttentionConfig(), only)))


def survey(
    model: nn.Module, config: AttentionConfig, only: str | Iterable[str] | None = None
) -> list[tuple[Site, Adapter | None, LayerPreview]]:
    """Every attention with its adapter and what is previewed for it."""
    check_type("model", model, nn.Module, "a torch.nn.Module")
    check_type("config", config, AttentionConfig, "an AttentionConfig")
    if only is not None:
        check_type("only", only, Iterable, "a name, a pattern, or several")
    patterns = None if only is None else [only] if isinstance(only, str) else list(only)
    sites = list(_sites(model))
    if patterns is not None:
        _check_patterns(patterns, [site.name for site, _ in sites])
    return [(site, adapter, _preview(site, adapter, config, patterns)) for site, adapter in sites]


def kept_attentions(model: nn.Module) -> list[Site]:
    """The attentions of a model that are not castling attention, such as those that nobody asked to convert.

    Example:
        >>> [site.name for site in kept_attentions(nn.TransformerEncoderLayer(32, 4))]
        ['self_attn']
    """
    return [site for site, _ in _sites(model) if not isinstance(site.module, HeadMixer)]


def _preview(site: Site, adapter: Adapter | None, config: AttentionConfig, patterns: list[str] | None) -> LayerPreview:
    kind, family = type(site.module).__name__, adapter.family if adapter else None
    if patterns is not None and not any(fnmatchcase(site.name, pattern) for pattern in patterns):
        return LayerPreview(site.name, kind, family, "keep", ("not asked for",))
    if isinstance(site.module, HeadMixer):
        return LayerPreview(site.name, kind, family, "refuse", ("it is castling attention already",))
    if adapter is None:
        return LayerPreview(site.name, kind, None, "keep", ("no adapter knows it",))
    reason = _own_forward(site.module, adapter) or adapter.refuses(site, config) or _unknown_grid(site, adapter, config)
    if reason is not None:
        return LayerPreview(site.name, kind, family, "refuse", (reason,))
    return LayerPreview(site.name, kind, family, "replace", tuple(adapter.notes(site, config)))


def _and_more(names: list[str]) -> str:
    """The first of the names, and how many others there are."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _sites(model: nn.Module) -> Iterator[tuple[Site, Adapter | None]]:
    """Attentions that are known, and what looks like an attention but is not, and is no part of one."""
    found = {name for name, module in model.named_modules() if _is_known(module)}
    for name, module in model.named_modules():
        ancestors = _ancestors(name)
        if name in found:
            # What is known is taken as a whole: the parts of an attention are not attentions.
            if not any(ancestor in found for ancestor in ancestors):
                yield Site(name, module, tuple(map(model.get_submodule, ancestors))), find_adapter(module)
        elif _looks_like_attention(module) and not any(
            name in _ancestors(known) or known in ancestors for known in found
        ):
            found.add(name)
            yield Site(name, module, tuple(map(model.get_submodule, ancestors))), None


def _is_known(module: nn.Module) -> bool:
    return isinstance(module, HeadMixer) or find_adapter(module) is not None


def _looks_like_attention(module: nn.Module) -> bool:
    kind = type(module).__name__.lower()
    return ("attention" in kind or "attn" in kind) and next(module.parameters(), None) is not None


def _ancestors(name: str) -> list[str]:
    """Names of the modules that this one stands in, the nearest first; the model itself is ''."""
    parts = name.split(".")
    return [".".join(parts[:length]) for length in reversed(range(len(parts)))] if name else []


def _own_forward(module: nn.Module, adapter: Adapter) -> str | None:
    known = adapter.host_class(module)
    assert known is not None
    if "forward" in vars(module) or type(module).forward is not known.forward:
        return f"a forward of its own, which may do something else than that of the {known.__name__} that is known"
    return None


def _unknown_grid(site: Site, adapter: Adapter, config: AttentionConfig) -> str | None:
    if config.local_conv == "grid" and adapter.grid_source is not None and adapter.grid_source(site) is None:
        return "local_conv='grid', as the grid of its tokens is not known here; 'tokens' and 'none' need none"
    return None


def _check_patterns(patterns: list[str], names: list[str]) -> None:
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            near = difflib.get_close_matches(pattern, names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; there are {len(names)}, such as {names[:2]}"
            raise ValueError(f"only: no attention has the name {pattern!r}{hint}")
