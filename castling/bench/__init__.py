"""Benchmarks: grids of measurements beside softmax attention in the same run, kept row by row as CSV."""
