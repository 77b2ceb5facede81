"""Pictures with masks for tests: red squares and blue discs on grey noise, in folders with a list of classes."""

import numpy as np
from PIL import Image, ImageDraw

CLASSES = ("ground", "square", "disc")
COLORS = ((120, 120, 120), (255, 0, 0), (0, 0, 255))
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
