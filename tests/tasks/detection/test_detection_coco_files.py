"""From COCO's json to average precision: through our loader, and by pycocotools on the very same file."""

import contextlib
import io
import json

import numpy as np
import pytest
import torch
from box_pictures import box_recipe
from PIL import Image

from castling.tasks.detection.metrics import coco_results
from castling.training import parse_recipe

pytest.importorskip("faster_coco_eval")
SIZES = [(200, 150), (97, 131), (333, 251), (500, 375), (160, 160), (640, 481)]
CATEGORIES = [{"id": 40, "name": "owl"}, {"id": 5, "name": "cat"}, {"id": 11, "name": "dog"}]


def draw_box(rng, width, height):
    """x y width height; every second one is exactly at one of the limits of COCO's ranges, where there is room."""
    fitting = [side for side in (32, 96) if side < min(width, height) - 1]
    if fitting and rng.random() < 0.5:
        sides = [int(rng.choice(fitting))] * 2
    else:
        sides = rng.uniform(4, 0.9 * np.array([width, height])).round(2).tolist()
    corner = (rng.uniform(-0.02, 1, 2) * (np.array([width, height]) - sides)).round(2)  # some begin outside
    return [*corner.tolist(), *sides]


@pytest.fixture(params=["box", "mask"])
def files(request, tmp_path):
    """Pictures of several sizes; areas are those of boxes or, smaller, those of masks. Returns root and content."""
    rng = np.random.default_rng(3)
    images, annotations = [], []
    for place, (width, height) in enumerate(SIZES):
        images.append({"id": 100 + 7 * place, "file_name": f"{place}.png", "width": width, "height": height})
        for _ in range(0 if place == 4 else 9):
            box = draw_box(rng, width, height)
            area = box[2] * box[3] * (1 if request.param == "box" else rng.uniform(0.3, 1))
            about = {"id": len(annotations) + 1, "image_id": images[-1]["id"], "bbox": box, "area": area}
            category, crowd = int(rng.choice([5, 11, 40])), int(rng.random() < 0.15)
            annotations.append({**about, "category_id": category, "iscrowd": crowd})
    content = {"images": images, "annotations": annotations, "categories": CATEGORIES}
    (tmp_path / "annotations").mkdir()
    for split in ("train", "val"):
        (tmp_path / split).mkdir()
        (tmp_path / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))
        for image in images:
            Image.new("L", (image["width"], image["height"])).save(tmp_path / split / image["file_name"])
    return tmp_path, content


def outputs_near(content, batch, rng):
    """Boxes beside each that is written, closer and further, in pixels of the input; scores of three classes."""
    boxes, scores = torch.zeros(len(batch["index"]), 40, 4), torch.zeros(len(batch["index"]), 40, 3)
    for row, index in enumerate(batch["index"].tolist()):
        image = content["images"][index]
        side = np.array([64 / image["width"], 64 / image["height"]] * 2)
        true = [one for one in content["annotations"] if one["image_id"] == image["id"]]
        for place, one in enumerate(true * 2):
            x, y, width, height = one["bbox"]
            shift = rng.normal(0, rng.choice([0.01, 0.1]), 4) * np.array([width, height] * 2)
            boxes[row, place] = torch.from_numpy((np.array([x, y, x + width, y + height]) + shift) * side)
            scores[row, place, [5, 11, 40].index(one["category_id"])] = rng.random()
    return {"scores": scores, "boxes": boxes}


def by_pycocotools(file, results):
    coco, evaluation = pytest.importorskip("pycocotools.coco"), pytest.importorskip("pycocotools.cocoeval")
    with contextlib.redirect_stdout(io.StringIO()):
        truth = coco.COCO(str(file))
        found = evaluation.COCOeval(truth, truth.loadRes(results), "bbox")
        found.evaluate()
        found.accumulate()
        found.summarize()
    return dict(zip(["ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large"], found.stats[:6], strict=True))


def test_numbers_are_those_of_pycocotools_on_the_same_file(files):
    root, content = files
    task = parse_recipe(box_recipe(root)).make_task()
    meter, rng = task.meter(), np.random.default_rng(5)
    for batch in task.loader("val", 4):
        meter.update(outputs_near(content, batch, rng), batch)
    results = coco_results(meter.pictures, task.facts["category_ids"])
    for result in results:
        result["image_id"] = content["images"][result["image_id"]]["id"]
    wanted = by_pycocotools(root / "annotations" / "instances_val.json", results)
    assert min(wanted.values()) > 0.05
    found = {metric.name: metric.value for metric in meter.result() if not metric.detail}
    assert found == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("area", [None, "large", float("nan"), -1, True])
def test_without_an_area_that_of_the_box_counts(files, area):
    root, content = files
    for one in content["annotations"]:
        one["area"] = area
    (root / "annotations" / "instances_val.json").write_text(json.dumps(content))
    batch = next(iter(parse_recipe(box_recipe(root)).make_task().loader("val", 2)))
    boxes = [one["bbox"] for one in content["annotations"] if one["image_id"] == 100]
    assert batch["written"][0][:, 4].tolist() == [width * height for _, _, width, height in boxes]
