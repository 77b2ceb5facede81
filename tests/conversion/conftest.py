import pytest
import timm
import torch

SIZES = {"img_size": 32, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 5}


@pytest.fixture
def vit():
    return timm.create_model("vit_tiny_patch16_224", dynamic_img_size=True, **SIZES).eval()


@pytest.fixture
def x():
    return torch.randn(2, 3, 32, 32)
