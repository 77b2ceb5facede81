"""Pictures with boxes for tests: red squares and blue discs on grey noise, in COCO's form."""

import json

import numpy as np
from PIL import Image, ImageDraw

CATEGORIES = [{"id": 3, "name": "square"}, {"id": 7, "name": "disc"}]


def write_boxes(root, num_train=16, num_val=8, side=64, most=3):
    """Write both splits; some pictures are empty, and sides of objects are a quarter to a half of the picture's."""
    (root / "annotations").mkdir(parents=True)
    for split, count in (("train", num_train), ("val", num_val)):
        folder, rng = root / f"{split}2017", np.random.default_rng([len(split), side])
        folder.mkdir()
        images, annotations = [], []
        for number in range(count):
            picture = Image.fromarray(rng.integers(90, 130, (side, side, 3), dtype=np.uint8))
            for _ in range(0 if number == count - 1 else rng.integers(1, most + 1)):
                x0, y0 = rng.integers(0, side // 2, 2).tolist()
                width = int(rng.integers(side // 4, side // 2))
                category = CATEGORIES[int(rng.integers(2))]
                draw = ImageDraw.Draw(picture)
                if category["name"] == "square":
                    draw.rectangle((x0, y0, x0 + width - 1, y0 + width - 1), fill="red")
                else:
                    draw.ellipse((x0, y0, x0 + width - 1, y0 + width - 1), fill="blue")
                about = {
                    "id": len(annotations) + 1,
                    "image_id": number + 1,
                    "category_id": category["id"],
                    "iscrowd": 0,
                }
                annotations.append({**about, "bbox": [x0, y0, width, width], "area": width * width})
            picture.save(folder / f"{number + 1:012d}.png")
            images.append({"id": number + 1, "file_name": f"{number + 1:012d}.png", "width": side, "height": side})
        content = {"images": images, "annotations": annotations, "categories": CATEGORIES}
        (root / "annotations" / f"instances_{split}2017.json").write_text(json.dumps(content))
    return root


def box_recipe(root, **training):
    """A detector of 64 px that trains in moments."""
    return {
        "task": "detection",
        "model": {"name": "castling_lcnet_vit_small", "options": {"scale": 0.25, "num_heads": [2, 2]}},
        "detector": {"neck_dim": 16, "head_convs": 1},
        "data": {"root": str(root), "image_size": 64},
        "training": {
            "epochs": 2,
            "batch_size": 8,
            "learning_rate": {"peak": 2e-3},
            "threshold": {"kind": "linear", "start": 0.05, "end": 1.0},
            "ema_decay": 0.9,
            "clip_norm": 10.0,
            "workers": 0,
            "log_every": 1,
            **training,
        },
    }
