"""Convert: put castling attention in the place of a model's attention, around the model's own parameters.

The whole plan is checked and every stand-in made before the first one is put in place, so that a failure leaves the
model as it was.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import TypeVar

from torch import nn

from castling.attention.grid import GridNote
from castling.config import AttentionConfig
from castling.conversion.adapters.adapter import GridHook
from castling.conversion.converted import ConvertedAttention, converted_attentions, set_blend
from castling.conversion.free_size import fix_size, free_size
from castling.conversion.inspection import ConversionPreview, survey

Model = TypeVar("Model", bound=nn.Module)


def convert(
    model: Model,
    config: AttentionConfig | None = None,
    only: str | Iterable[str] | None = None,
    blend: float = 0.0,
    inplace: bool = True,
) -> Model:
    """Replace the attention of a model by castling attention, keeping its weights.

    At blend 0 the model computes what it did; `set_blend` moves it to castling attention, and at 1 it can be castled.
    The parameters are the same objects under the same names, so that an optimizer or an average made before goes on
    working. That is why the model itself is changed by default. New are the local convolutions, which start at zero.
    ViTs of timm's that were made for one picture size take others from then on.

    Args:
        model: a model of a supported family, see `preview`, on its own or inside of a larger one.
        config: kernel, branch and convolution; the authors' block where None.
        only: names of attentions, or patterns such as `blocks.[6-9].*`; all where None.
        blend: weight of castling attention at the start.
        inplace: whether the model itself changes, or a copy, whose parameters are copies too.

    Returns:
        The converted model. It is the same object, unless it was nothing but an attention.

    Raises:
        ValueError: if nothing can be converted, with the supported families; if a feature is in the way, with its name;
            if the model is converted already; for a blend outside [0, 1]. The model is then as it was.

    Example:
        >>> import torch
        >>> model = nn.TransformerEncoderLayer(32, 4, batch_first=True).eval()
        >>> x = torch.randn(2, 50, 32)
        >>> before = model(x)
        >>> torch.allclose(convert(model)(x), before, atol=1e-5)
        True
    """
    config = config or AttentionConfig()
    model = model if inplace else copy.deepcopy(model)
    found = survey(model, config, only)
    ConversionPreview(tuple(layer for _, _, layer in found)).check()
    stand_ins: dict[nn.Module, ConvertedAttention] = {}
    notes: dict[nn.Module, GridNote] = {}
    for site, adapter, layer in found:
        if adapter is not None and layer.action == "replace":
            stand_ins[site.module] = stand_in = adapter.build(site, config)
            source = adapter.grid_source(site) if adapter.grid_source and config.local_conv == "grid" else None
            if source is not None:
                stand_in.grid_note = notes.setdefault(source, GridNote())
    for stand_in in stand_ins.values():
        set_blend(stand_in, blend)
    for host, stand_in in stand_ins.items():
        stand_in.clear_cache(host)
    for source, note in notes.items():
        source.register_forward_pre_hook(GridHook(note))
    free_size(model)
    return _swap(model, stand_ins)


def unconvert(model: Model) -> Model:
    """Give the original attention modules back, with the weights that the model has now.

    Args:
        model: a converted model, castled or not; changed in place.

    Returns:
        The model as it was before `convert`. It is the same object, unless it was nothing but an attention.

    Raises:
        ValueError: if there is no converted attention in the model.

    Example:
        >>> model = convert(nn.TransformerEncoderLayer(32, 4))
        >>> type(unconvert(model).self_attn).__name__
        'MultiheadAttention'
    """
    attentions = converted_attentions(model).values()
    hosts: dict[nn.Module, nn.Module] = {attention: attention.release() for attention in attentions}
    for module in model.modules():
        for key in [key for key, hook in module._forward_pre_hooks.items() if isinstance(hook, GridHook)]:
            del module._forward_pre_hooks[key]
    fix_size(model)
    return _swap(model, hosts)


def _swap(model: Model, replacements: Mapping[nn.Module, nn.Module]) -> Model:
    """Put modules in the place of others, wherever those stand."""
    for module in list(model.modules()):
        if module not in replacements:
            for name, child in module._modules.items():
                if child is not None and child in replacements:
                    setattr(module, name, replacements[child])
    return replacements.get(model, model)  # type: ignore[return-value]
