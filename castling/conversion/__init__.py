"""Changing a model's attention: converting a network, castling it with proof of what that cost, folding it."""

from castling.conversion.adapters import Adapter, register_adapter
from castling.conversion.calibration import calibrate, fold_scale
from castling.conversion.certificate import Certificate, Judge, NetworkReport, certify
from castling.conversion.comparison import LayerReport
from castling.conversion.converted import BlendSchedule, ConvertedAttention, set_blend
from castling.conversion.folding import optimize
from castling.conversion.inspection import ConversionPreview, preview
from castling.conversion.mask_advice import mask_advice
from castling.conversion.replace import convert, unconvert
from castling.conversion.switch import castle, castled, has_castling_attention, is_castled
from castling.conversion.twins import original_of, softmax_twin_of

__all__ = [
    "Adapter",
    "BlendSchedule",
    "Certificate",
    "ConversionPreview",
    "ConvertedAttention",
    "Judge",
    "LayerReport",
    "NetworkReport",
    "calibrate",
    "castle",
    "castled",
    "certify",
    "convert",
    "fold_scale",
    "has_castling_attention",
    "is_castled",
    "mask_advice",
    "optimize",
    "original_of",
    "preview",
    "register_adapter",
    "set_blend",
    "softmax_twin_of",
    "unconvert",
]
