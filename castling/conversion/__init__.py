"""Changing a model's attention: the switch from training to inference, and the proof of what it cost."""

from castling.conversion.castle import castle, castled, is_castled
from castling.conversion.certificate import Certificate, LayerReport, certify
from castling.conversion.closing import closing_advice
from castling.conversion.optimize import optimize

__all__ = ["Certificate", "LayerReport", "castle", "castled", "certify", "closing_advice", "is_castled", "optimize"]
