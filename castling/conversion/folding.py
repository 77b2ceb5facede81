"""A castled network folded for inference: the same outputs from less work, in every engine.

Constants of the attention are folded (see `castling.attention.folded`), filters that heads share are expanded once,
batch norms join the layers before or behind them, dropout goes, and linear layers are those of oneDNN.
"""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import TypeVar

from timm.layers import BatchNormAct2d, ConvNormAct, DropPath
from timm.models._efficientnet_blocks import DepthwiseSeparableConv
from timm.models.levit import ConvNorm, LinearNorm, NormLinear
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from castling.attention import HeadMixer, branches
from castling.config import check_type
from castling.conversion.fast_linear import fast_linear
from castling.measure.heap import keep_heap
from castling.models.pooling import expand_heads

Model = TypeVar("Model", bound=nn.Module)

# Convolutions of timm's blocks, each with the batch norm and activation that it runs next.
NORMED = {ConvNormAct: (("conv", "bn"),), DepthwiseSeparableConv: (("conv_dw", "bn1"), ("conv_pw", "bn2"))}


def optimize(model: Model, inplace: bool = False) -> Model:
    """Fold a network for inference. It is put into evaluation mode and its parameters are frozen.

    The process keeps freed memory from here on, as its next pass needs it again (`castling.measure.heap`).

    The names in its `state_dict` are no longer those of the trained network: keep the castled weights, and fold them
    again where they are used.

    Args:
        model: a castled model, or any without auxiliary branches: a baseline only loses its dropout and batch norms.
        inplace: whether the model itself changes instead of a copy.

    Returns:
        The folded model; its outputs equal the castled model's to 1e-5.

    Raises:
        ValueError: if an auxiliary branch is left.

    Example:
        >>> import timm, torch, castling
        >>> model = castling.castle(timm.create_model("castling_levit_128")).eval()
        >>> fast, image = optimize(model), torch.randn(1, 3, 64, 64)
        >>> torch.allclose(fast(image), model(image), atol=1e-5, rtol=0)
        True
    """
    check_type("model", model, nn.Module, "a torch.nn.Module")
    left = list(branches(model))
    if left:
        raise ValueError(
            f"{len(left)} auxiliary branches are left, such as that of {left[0]!r}: castle the model first"
        )
    keep_heap()
    model = model if inplace else copy.deepcopy(model)
    model.eval().requires_grad_(False)
    for module in [module for module in model.modules() if isinstance(module, HeadMixer)]:
        module.fold()
        for name in ("pool_q", "pool_k", "pool_v"):
            if isinstance(getattr(module, name, None), nn.Conv2d):
                expand_heads(getattr(module, name), module.num_heads)
    _replace(model)
    return model


def _replace(module: nn.Module) -> None:
    """Fold the children of a module into simpler ones, all the way down."""
    for name, child in list(module.named_children()):
        if isinstance(child, (ConvNorm, LinearNorm, NormLinear)):
            child = child.fuse().eval().requires_grad_(False)
            setattr(module, name, fast_linear(child) if type(child) is nn.Linear else child)
        elif type(child) is nn.Linear:
            setattr(module, name, fast_linear(child))
        elif isinstance(child, (nn.Dropout, DropPath)):
            setattr(module, name, nn.Identity())
        else:
            _replace(child)
    if isinstance(module, nn.Sequential):
        _join_batch_norms(module)
    for conv, norm in NORMED.get(type(module), ()):
        layer = getattr(module, norm)
        if isinstance(layer, BatchNormAct2d):
            setattr(module, conv, fuse_conv_bn_eval(getattr(module, conv), layer))
            setattr(module, norm, layer.act)


def _join_batch_norms(layers: nn.Sequential) -> None:
    """Let a convolution take in the batch norm right behind it."""
    names = list(layers._modules)
    for name, following in pairwise(names):
        conv, norm = getattr(layers, name), getattr(layers, following)
        if isinstance(conv, nn.Conv2d) and type(norm) is nn.BatchNorm2d:
            setattr(layers, name, fuse_conv_bn_eval(conv, norm))
            setattr(layers, following, nn.Identity())
