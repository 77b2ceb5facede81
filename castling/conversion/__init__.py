"""Changing a model's attention: converting a network, castling it with proof of what that cost, folding it."""

from castling.conversion.adapters import Adapter, register_adapter
from castling.conversion.calibration import calibrate, fold_scale
from castling.conversion.castle import castle, castled, is_castled
from castling.conversion.certificate import Certificate, LayerReport, certify
from castling.conversion.closing import closing_advice
from castling.conversion.convert import convert, unconvert
from castling.conversion.optimize import optimize
from castling.conversion.plan import ConversionPlan, plan
from castling.conversion.transfer import attention_losses, feature_losses, original_of
from castling.conversion.transition import BlendSchedule, ConvertedAttention, set_blend

__all__ = [
    "Adapter",
    "BlendSchedule",
    "Certificate",
    "ConversionPlan",
    "ConvertedAttention",
    "LayerReport",
    "attention_losses",
    "calibrate",
    "castle",
    "castled",
    "certify",
    "closing_advice",
    "convert",
    "feature_losses",
    "fold_scale",
    "is_castled",
    "optimize",
    "original_of",
    "plan",
    "register_adapter",
    "set_blend",
    "unconvert",
]
