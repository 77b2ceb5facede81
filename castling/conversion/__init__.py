"""Changing a model's attention: the switch from training to inference."""

from castling.conversion.castle import castle, castled, is_castled

__all__ = ["castle", "castled", "is_castled"]
