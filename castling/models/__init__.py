"""Networks built from timm's parts and our attention, registered with timm.

Features come from `features_only=True` and `forward_intermediates`, or from any layer by its name with
`timm.models.create_feature_extractor`: it knows which layers torch.fx must take whole, torchvision's has to be told.
"""

from castling.models import deit, esnet_vit, lcnet_vit, levit, mvitv2
from castling.models.pretrained import load_host_weights

__all__ = ["deit", "esnet_vit", "lcnet_vit", "levit", "load_host_weights", "mvitv2"]
