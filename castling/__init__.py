"""Castling: vision transformers whose attention switches from softmax to linear-angular for inference.

Runs, as the command line has them:

    model = castling.train("digits/castling", "runs/digits")   # `castling recipes` lists what there is
    castling.castle_run("runs/digits")                         # drop the branch, with a certificate of what that cost
    castling.open("runs/digits/castled").predict("scan.png")   # a run, a castled folder, or an exported file
    castling.explain("runs/digits/castled", "scan.png")        # what it attends to, and what decided
    castling.export("runs/digits", "digits.onnx")              # verified against PyTorch, or no file
    castling.publish("runs/digits", "published/digits")        # for transformers and timm, with a card

Networks of one's own:

    castling.convert(model)       # castling attention around a ViT's weights; preview says what would happen
    castling.set_blend(model, 1)  # over to it, slowly while training
    castling.castle(model)        # for good; castled(model) for a moment, certify says what it cost
    castling.export(model, "model.onnx", example)

`timm.create_model("castling_deit_tiny_patch16_224")` and its siblings are there once this is imported.
"""

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
from castling.hub.arrival import wait_for_transformers
from castling.models import load_host_weights
from castling.workflows.calls import export, open, train
from castling.workflows.castle_run import castle_run
from castling.workflows.explaining import explain
from castling.workflows.publishing import publish

__version__ = "0.2.0"

wait_for_transformers()

__all__ = [
    "AttentionConfig",
    "CastlingAttention",
    "calibrate",
    "castle",
    "castle_run",
    "castled",
    "certify",
    "convert",
    "explain",
    "export",
    "fold_scale",
    "is_castled",
    "linear_angular_attention",
    "load_host_weights",
    "open",
    "optimize",
    "preview",
    "publish",
    "set_blend",
    "train",
    "unconvert",
]
