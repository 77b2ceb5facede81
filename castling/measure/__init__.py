"""Measuring: multiply-accumulates, parameters, time, and the shapes that a forward pass makes."""

from castling.measure.latency import Timing, time_interleaved
from castling.measure.macs import MacCount, count_macs, count_parameters
from castling.measure.quadratic import quadratic_tensors

__all__ = ["MacCount", "Timing", "count_macs", "count_parameters", "quadratic_tensors", "time_interleaved"]
