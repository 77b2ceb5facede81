"""The same small data in each format: pictures with boxes that the tests make."""

import json

import numpy as np
from PIL import Image

CLASSES = {3: "cat", 7: "dog", 11: "bird"}  # ids with gaps that do not begin at 1
SIZE = (40, 30)
DATA = {  # split -> picture -> (x0, y0, x1, y1, class id)
    "train": {"a": [(2, 3, 12, 13, 7), (20, 10, 40, 30, 3)], "b": [], "c": [(0, 0, 40, 30, 11)]},
    "val": {"d": [(5, 5, 6, 25, 3)], "e": [(8, 8, 16, 24, 7), (8, 8, 16, 24, 11)]},
}


def save_picture(path, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (SIZE[1], SIZE[0], 3), np.uint8)
    Image.fromarray(pixels).save(path)


def seed_of(name):
    return ord(name[0])


def coco_content(pictures):
    content = {"images": [], "annotations": [], "categories": [{"id": k, "name": v} for k, v in CLASSES.items()]}
    for number, (name, boxes) in enumerate(pictures.items()):
        image = {"id": 10 * number + 5, "file_name": f"{name}.png", "width": SIZE[0], "height": SIZE[1]}
        content["images"].append(image)
        for x0, y0, x1, y1, category in boxes:
            box = {"id": len(content["annotations"]) + 1, "image_id": image["id"], "category_id": category}
            content["annotations"].append({**box, "bbox": [x0, y0, x1 - x0, y1 - y0], "iscrowd": 0})
    return content


def write_coco(root, data=None):
    for split, pictures in (data or DATA).items():
        for name in pictures:
            save_picture(root / f"{split}2017" / f"{name}.png", seed_of(name))
        (root / "annotations").mkdir(exist_ok=True)
        (root / "annotations" / f"instances_{split}2017.json").write_text(json.dumps(coco_content(pictures)))
    return root


def edit_coco(root, change, split="train"):
    """Change what a written file says."""
    file = root / "annotations" / f"instances_{split}2017.json"
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def voc_text(boxes):
    objects = "".join(
        f"<object><name>{CLASSES[category]}</name><difficult>0</difficult><bndbox><xmin>{x0 + 1}</xmin>"
        f"<ymin>{y0 + 1}</ymin><xmax>{x1}</xmax><ymax>{y1}</ymax></bndbox></object>\n"
        for x0, y0, x1, y1, category in boxes
    )
    return f"<annotation>\n<size><width>{SIZE[0]}</width><height>{SIZE[1]}</height></size>\n{objects}</annotation>"


def write_voc(root, data=None, lists=True):
    (root / "Annotations").mkdir()
    (root / "ImageSets" / "Main").mkdir(parents=True)
    for split, pictures in (data or DATA).items():
        for name, boxes in pictures.items():
            save_picture(root / "JPEGImages" / f"{name}.png", seed_of(name))
            (root / "Annotations" / f"{name}.xml").write_text(voc_text(boxes))
        if lists:
            (root / "ImageSets" / "Main" / f"{split}.txt").write_text("\n".join(pictures) + "\n")
    return root


def yolo_text(boxes):
    width, height = SIZE
    return "".join(
        f"{category} {(x0 + x1) / 2 / width} {(y0 + y1) / 2 / height} {(x1 - x0) / width} {(y1 - y0) / height}\n"
        for x0, y0, x1, y1, category in boxes
    )


def write_yolo(root, data=None):
    (root / "data.yaml").write_text(f"train: images/train\nval: images/val\nnames: {CLASSES}\n")
    for split, pictures in (data or DATA).items():
        (root / "labels" / split).mkdir(parents=True)
        for name, boxes in pictures.items():
            save_picture(root / "images" / split / f"{name}.png", seed_of(name))
            if boxes:
                (root / "labels" / split / f"{name}.txt").write_text(yolo_text(boxes))
    return root


WRITERS = {"coco": write_coco, "voc": write_voc, "yolo": write_yolo}
