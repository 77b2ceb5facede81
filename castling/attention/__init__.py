"""The method: linear-angular attention, its relatives, its auxiliary branch and the block made of them."""

from castling.attention.auxiliary import AuxiliarySoftmax, branches
from castling.attention.grid import Grid
from castling.attention.kernels import KERNELS, Kernel, attend
from castling.attention.linear_angular import linear_angular_attention
from castling.attention.local_conv import GridConv, TokenConv
from castling.attention.mlp import Mlp
from castling.attention.module import CastlingAttention, HeadMixer
from castling.attention.threshold import ThresholdSchedule, can_empty

__all__ = [
    "KERNELS",
    "AuxiliarySoftmax",
    "CastlingAttention",
    "Grid",
    "GridConv",
    "HeadMixer",
    "Kernel",
    "Mlp",
    "ThresholdSchedule",
    "TokenConv",
    "attend",
    "branches",
    "can_empty",
    "linear_angular_attention",
]
