"""Tasks: each gives the training loop a model, loaders, losses and an evaluation, and knows nothing of the loop."""

from castling.tasks.batches import EpochBatches, Key, Shard
from castling.tasks.classification.task import Classification

TASKS = {"classification": Classification}

__all__ = ["TASKS", "Classification", "EpochBatches", "Key", "Shard"]
