"""Castling: vision transformers whose attention switches from softmax to linear-angular for inference."""

from castling.attention import CastlingAttention, linear_angular_attention
from castling.config import AttentionConfig
from castling.conversion import (
    calibrate,
    castle,
    castled,
    certify,
    convert,
    fold_scale,
    is_castled,
    optimize,
    preview,
    set_blend,
    unconvert,
)
from castling.models import load_host_weights

__version__ = "0.2.0"

__all__ = [
    "AttentionConfig",
    "CastlingAttention",
    "calibrate",
    "castle",
    "castled",
    "certify",
    "convert",
    "fold_scale",
    "is_castled",
    "linear_angular_attention",
    "load_host_weights",
    "optimize",
    "preview",
    "set_blend",
    "unconvert",
]
