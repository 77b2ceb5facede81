"""Adapters: one small file for each family of hosts, and the list of them."""

from castling.conversion.adapters import (
    hf_sam,
    hf_vit,
    timm_beit,
    timm_levit,
    timm_mvitv2,
    timm_tinyvit,
    timm_vit,
    torch_mha,
)
from castling.conversion.adapters.adapter import Adapter, Site, refuse_masks

ADAPTERS: list[Adapter] = [
    timm_vit.ADAPTER,
    timm_tinyvit.ADAPTER,
    timm_levit.ADAPTER,
    timm_beit.ADAPTER,
    timm_mvitv2.ADAPTER,
    hf_vit.ADAPTER,
    hf_sam.ADAPTER,
    torch_mha.ADAPTER,
]


def register_adapter(adapter: Adapter) -> None:
    """Let `preview` and `convert` know another family of hosts; examples/own_adapter.py shows how.

    It comes before all others, and takes the place of one with the same `family`.

    Example:
        >>> from torch import nn
        >>> class MyAttention(nn.Module): ...
        >>> register_adapter(Adapter("mine", (MyAttention,), build=lambda site, config: ...))
        >>> find_adapter(MyAttention()).family
        'mine'
        >>> ADAPTERS.remove(find_adapter(MyAttention()))
    """
    ADAPTERS[:] = [adapter, *(other for other in ADAPTERS if other.family != adapter.family)]


def find_adapter(module: object) -> Adapter | None:
    """The adapter that knows this attention."""
    return next((adapter for adapter in ADAPTERS if adapter.host_class(module) is not None), None)  # type: ignore[arg-type]


__all__ = ["ADAPTERS", "Adapter", "Site", "find_adapter", "refuse_masks", "register_adapter"]
