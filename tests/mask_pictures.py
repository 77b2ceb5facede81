"""Pictures with masks for tests: red squares and blue discs on grey noise, in folders with a list of classes."""

import numpy as np
from PIL import Image, ImageDraw

CLASSES = ("ground", "square", "disc")
COLORS = ((120, 120, 120), (255, 0, 0), (0, 0, 255))
SMALL_MASK2FORMER = {
    "decoder": "mask2former",
    "dim": 32,
    "queries": 5,
    "layers": 1,
    "encoder_layers": 1,
    "heads": 2,
    "ffn_dim": 32,
    "points": 64,
}
UNSURE = 255  # the value of a frame of one pixel around each object


def draw_scene(rng, width, height, most=3):
    """A picture with objects of a quarter to a half of its sides, and its mask: places of classes, 255 around them."""
    picture = Image.fromarray(rng.integers(90, 130, (height, width, 3), dtype=np.uint8))
    mask = Image.new("L", (width, height), 0)
    for _ in range(rng.integers(1, most + 1)):
        side = int(rng.integers(min(width, height) // 4, min(width, height) // 2))
        x, y = int(rng.integers(0, width - side)), int(rng.integers(0, height - side))
        label = int(rng.integers(1, 3))
        for canvas, inner, outer in ((picture, COLORS[label], None), (mask, label, UNSURE)):
            draw = ImageDraw.Draw(canvas)
            shape = draw.rectangle if label == 1 else draw.ellipse
            shape((x, y, x + side - 1, y + side - 1), fill=inner, outline=outer)
    return picture, mask


def write_masks(root, num_train=16, num_val=8, size=(64, 64), most=3, classes=CLASSES):
    """Write `images/{train,val}`, `annotations/{train,val}` and `classes.txt`."""
    root.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", num_train), ("val", num_val)):
        rng = np.random.default_rng([len(split), *size])
        folders = [root / kind / split for kind in ("images", "annotations")]
        for folder in folders:
            folder.mkdir(parents=True)
        for number in range(count):
            for folder, image in zip(folders, draw_scene(rng, *size, most), strict=True):
                image.save(folder / f"{number:03d}.png")
    if classes:
        (root / "classes.txt").write_text("\n".join(classes) + "\n")
    return root


def mask_recipe(root, **training):
    """A segmenter of 64 px that trains in moments."""
    return {
        "task": "segmentation",
        "model": {
            "name": "castling_deit_tiny_patch16_224",
            "attention": {"threshold": 0.05},
            "options": {"embed_dim": 16, "depth": 1, "num_heads": 2, "img_size": 64},
        },
        "segmenter": {"dim": 16, "fpn_dim": 16},
        "data": {"root": str(root), "image_size": 64},
        "augment": {"scale": [0.8, 1.25]},
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
