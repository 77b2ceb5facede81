"""Pictures and a recipe for tests of masked pretraining: stripes and waves, learned in moments."""

import numpy as np
from PIL import Image


def write_pictures(root, num_train=16, num_val=6, side=40):
    """Write both splits of a folder without labels: waves of any direction and colour."""
    for split, count in (("train", num_train), ("val", num_val)):
        (root / split).mkdir(parents=True)
        rng = np.random.default_rng(len(split))
        down, right = np.mgrid[:side, :side] / side
        for number in range(count):
            waves = rng.uniform(-3, 3, (3, 2))
            shades = [127 + 100 * np.sin(6 * (a * down + b * right)) for a, b in waves]
            Image.fromarray(np.stack(shades, axis=2).astype(np.uint8)).save(root / split / f"{number}.png")
    return root


def masked_recipe(root, **training):
    """A ViT of 32 px, of whose 16 patches 4 are seen."""
    options = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}
    return {
        "task": "pretraining",
        "model": {"name": "castling_deit_tiny_patch16_224", "options": options},
        "decoder": {"dim": 16, "depth": 1, "num_heads": 2},
        "data": {"root": str(root), "image_size": 32},
        "training": {
            "epochs": 2,
            "batch_size": 8,
            "learning_rate": {"peak": 2e-3},
            "threshold": {"kind": "linear", "start": 0.05, "end": 1.0},
            "ema_decay": 0.9,
            "clip_norm": 1.0,
            "workers": 0,
            "log_every": 1,
            **training,
        },
    }
