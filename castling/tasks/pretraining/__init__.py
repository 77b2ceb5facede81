"""Pretraining without labels: parts of pictures are hidden, and the network learns to draw them (MAE)."""
