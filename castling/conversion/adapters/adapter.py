"""What an adapter is: which attentions it knows, what it refuses, and what stands in for them.

It names the classes of its hosts instead of importing them, so that a library that is not there costs nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from castling.attention import can_empty
from castling.attention.grid import GridNote
from castling.config import AttentionConfig
from castling.conversion.converted import ConvertedAttention


@dataclass(frozen=True)
class Site:
    """An attention and where it stands.

    Args:
        name: its name in the model.
        module: the host.
        ancestors: the modules that it stands in, the nearest first and the model last.
    """

    name: str
    module: nn.Module
    ancestors: tuple[nn.Module, ...] = ()

    def within(self, attribute: str) -> nn.Module | None:
        """The nearest ancestor that has this attribute."""
        return next((module for module in self.ancestors if hasattr(module, attribute)), None)


def nothing_refused(site: Site, config: AttentionConfig) -> str | None:
    """For a host without features that linear attention lacks."""
    return None


def nothing_noted(site: Site, config: AttentionConfig) -> list[str]:
    """For a host about which there is nothing to say."""
    return []


def no_grid(site: Site) -> nn.Module | None:
    """For a host that does not know where its tokens lie in an image."""
    return None


@dataclass(frozen=True)
class Adapter:
    """One family of hosts.

    Args:
        family: its name, for people.
        hosts: classes of its attentions, or their names as `module:Class`. A subclass is one too, unless it has a
            `forward` of its own.
        build: maker of the module that stands in for a host, which leaves the host as it is.
        refuses: the reason why a host cannot be converted, with the name of the feature, or None.
        notes: facts to know about converting it.
        grid_source: the module that sees the image before the attention does, for the 2-D convolution; None from it if
            there is none. Without it, the stand-in must know its grid by itself.
    """

    family: str
    hosts: tuple[type[nn.Module] | str, ...]
    build: Callable[[Site, AttentionConfig], ConvertedAttention]
    refuses: Callable[[Site, AttentionConfig], str | None] = nothing_refused
    notes: Callable[[Site, AttentionConfig], list[str]] = nothing_noted
    grid_source: Callable[[Site], nn.Module | None] | None = None

    def host_class(self, module: nn.Module) -> type[nn.Module] | None:
        """The class in `hosts` that the module is an instance of."""
        for host in self.hosts:
            kind = _loaded(host) if isinstance(host, str) else host
            if kind is not None and isinstance(module, kind):
                return kind
        return None


class GridHook:
    """Before an image becomes tokens, leaves their grid in a note for the attentions behind."""

    def __init__(self, note: GridNote) -> None:
        self.note = note

    def __call__(self, patch_embed: nn.Module, inputs: tuple) -> None:
        """Called by torch with the image `(B, C, H, W)`."""
        height, width = inputs[0].shape[-2:]
        if hasattr(patch_embed, "dynamic_feat_size"):  # timm's
            rows, columns = patch_embed.dynamic_feat_size((height, width))  # type: ignore[operator]
        else:
            patch_height, patch_width = patch_embed.patch_size  # type: ignore[misc]
            rows, columns = height // patch_height, width // patch_width
        self.note.grid = (rows, columns)


def refuse_masks(**masks: object) -> None:
    """Refuse a call with a mask, by its name.

    Raises:
        ValueError: if any of them is neither None nor False.
    """
    given = [name for name, mask in masks.items() if mask is not None and mask is not False]
    if given:
        raise ValueError(f"linear attention knows no masks on its logits; got {', '.join(given)}")


def bias_note(num_keys: int, config: AttentionConfig) -> list[str]:
    """What to say about a host with position biases over a fixed number of keys."""
    notes = ["position biases go to softmax only and end with it"]
    if config.aux and not can_empty(config.threshold, num_keys, config.threshold_relative):
        notes.append(f"a threshold of {config.threshold:g} never empties a mask over {num_keys} keys")
    return notes


def _loaded(name: str) -> type[nn.Module] | None:
    """A class by `module:Class`, if anyone has imported it; a model of it could not be there otherwise."""
    module, _, kind = name.partition(":")
    return getattr(sys.modules.get(module), kind, None)
