"""Small hosts of every family, with random weights everywhere: initial zeros would hide what a part does."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import timm
import torch
from timm.models.levit import Levit
from timm.models.mvitv2 import MultiScaleVit, MultiScaleVitCfg
from timm.models.tiny_vit import TinyVit
from torch import nn


@dataclass
class Host:
    model: nn.Module
    x: torch.Tensor
    num_tokens: int  # of its largest attention; more than any layer has channels

    def __call__(self, model=None, x=None):
        out: Any = (self.model if model is None else model)(self.x if x is None else x)
        return out if isinstance(out, torch.Tensor) else out[0]


def timm_vit(name="vit_tiny_patch16_224", **kwargs):
    sizes = {"img_size": 32, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "mlp_ratio": 2}
    return timm.create_model(name, num_classes=5, **{**sizes, **kwargs}), images(32), 65


def beit(**kwargs):
    sizes = {"img_size": 32, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "mlp_ratio": 2}
    return timm.create_model("beit_base_patch16_224", num_classes=5, **sizes, **kwargs), images(32), 65


def levit(**kwargs):
    sizes = {"embed_dim": (16, 24, 32), "key_dim": 4, "depth": (1, 1, 1), "num_heads": (2, 3, 4), "num_classes": 5}
    return Levit(img_size=160, **sizes, **kwargs), images(160), 100


def mvitv2(**kwargs):
    cfg = MultiScaleVitCfg(depths=(1, 1), embed_dim=(16, 32), num_heads=(1, 2), mlp_ratio=2.0)
    return MultiScaleVit(replace(cfg, **kwargs), img_size=64, num_classes=5), images(64), 256


def tiny_vit():
    sizes = {"embed_dims": (8, 16, 16, 24), "depths": (1, 1, 1, 1), "num_heads": (1, 2, 2, 2)}
    return TinyVit(window_sizes=(7, 7, 14, 7), mlp_ratio=2.0, num_classes=5, **sizes), images(64), 196


def hugging_face(name, **kwargs):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = getattr(transformers, f"{name}Config")(image_size=32, patch_size=4, mlp_ratio=2, **sizes, **kwargs)
    return getattr(transformers, f"{name}Model")(config), images(32), 65


def clip_tower():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return (
        transformers.CLIPVisionModel(transformers.CLIPVisionConfig(image_size=32, patch_size=4, **sizes)),
        images(32),
        65,
    )


def sam_encoder(**kwargs):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_dim": 32, "output_channels": 8}
    places = {
        "image_size": 40,
        "patch_size": 4,
        "window_size": 6,
        "global_attn_indexes": [1],
        "initializer_range": 0.02,
    }
    return transformers.SamVisionModel(transformers.SamVisionConfig(**sizes, **places, **kwargs)), images(40), 100


def torch_encoder(**kwargs):
    layer = nn.TransformerEncoderLayer(16, 2, 32, **kwargs)
    x = torch.randn(2, 64, 16) if kwargs.get("batch_first") else torch.randn(64, 2, 16)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=bool(kwargs.get("batch_first"))), x, 64


def torchvision_vit():
    from torchvision.models import VisionTransformer

    sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 32, "num_classes": 5}
    return VisionTransformer(image_size=32, patch_size=4, **sizes), images(32), 65


def images(side, batch=2):
    return torch.randn(batch, 3, side, side)


HOSTS = {
    "timm vit": timm_vit,
    "timm deit, distilled": lambda: timm_vit("deit_tiny_distilled_patch16_224"),
    "timm deit3": lambda: timm_vit("deit3_small_patch16_224", init_values=0.5),
    "timm vit, q/k norm": lambda: timm_vit(qk_norm=True, scale_attn_norm=True, qkv_bias=False),
    "timm vit, registers": lambda: timm_vit(reg_tokens=4, class_token=False, global_pool="avg"),
    "timm beit": lambda: beit(init_values=0.5),
    "timm beit, without biases": lambda: beit(use_rel_pos_bias=False, qkv_bias=False),
    "timm levit": levit,
    "timm levit, convolutional": lambda: levit(use_conv=True),
    "timm mvitv2": mvitv2,
    "timm mvitv2, class token": lambda: mvitv2(use_cls_token=True, expand_attn=False),
    "timm tinyvit": tiny_vit,
    "hf vit": lambda: hugging_face("ViT"),
    "hf deit": lambda: hugging_face("DeiT"),
    "hf dinov2": lambda: hugging_face("Dinov2"),
    "hf dinov2, registers": lambda: hugging_face("Dinov2WithRegisters", num_register_tokens=4),
    "hf clip": clip_tower,
    "hf sam": sam_encoder,
    "hf sam, without positions": lambda: sam_encoder(use_rel_pos=False),
    "torch encoder": lambda: torch_encoder(batch_first=True),
    "torch encoder, tokens first": lambda: torch_encoder(norm_first=True, activation="gelu"),
    "torchvision vit": torchvision_vit,
}
ONE_OF_EACH_FAMILY = [
    "timm vit",
    "timm beit",
    "timm levit",
    "timm mvitv2",
    "timm tinyvit",
    "hf vit",
    "hf sam",
    "torch encoder",
]  # where a test takes long


def make_host(name):
    model, x, num_tokens = HOSTS[name]()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return Host(model.eval(), x, num_tokens)
