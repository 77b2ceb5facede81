"""Networks built from timm's parts and our attention, registered with timm."""

from castling.models import deit, levit, mvitv2
from castling.models.pretrained import load_host_weights

__all__ = ["deit", "levit", "load_host_weights", "mvitv2"]
