"""Small good files of every kind that is read: what mutation begins with."""

import gzip
import io
import json
import pickle
import shutil
import struct
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
import openvino
import torch
import yaml
from openvino import opset13
from PIL import Image
from safetensors.torch import save, save_file

from castling.exporting.metadata import KEY, Metadata
from castling.exporting.openvino import save_openvino
from castling.training import RunFolder, parse_recipe
from castling.training.checkpoint import Checkpoint, save_checkpoint
from castling.training.manifest import write_manifest

sys.path.append(str(Path(__file__).parents[1]))  # where helpers of all tests are
from run_folders import SPEED, certificate, make_run

SIZES = {"img_size": 16, "patch_size": 8, "embed_dim": 8, "depth": 1, "num_heads": 2}
RECIPES = {
    "classification": """task: classification
seed: 1
model: {name: castling_deit_tiny_patch16_224, options: {depth: 1}}
data: {source: digits, image_size: 32, channels: 1, mean: [0.3], std: [0.4]}
augment: {auto_augment: null, mixup: 0.1}
training: {epochs: 2, threshold: {kind: linear, start: 0.02, end: 1.0}}
""",
    "detection": """task: detection
model: {name: castling_lcnet_vit_small}
detector: {neck_dim: 16}
data: {image_size: 64, labels: [cat, dog], sizes: [32, 64]}
training: {learning_rate: {kind: cosine, peak: 1e-3}}
""",
    "segmentation": """task: segmentation
model: {name: vit_tiny_patch16_224, convert: {calibrate: 0}}
segmenter: {dim: 16}
data: {image_size: 64, values: [0, 1], ignore: [255]}
training: {blend: {kind: linear}, clip_norm: 1.0}
""",
}
RUN = {  # short, as parsing is what takes time
    "task": "classification",
    "model": {"name": "castling_deit_tiny_patch16_224", "options": SIZES},
    "data": {"source": "digits", "image_size": 16},
}
LABELS = [str(number) for number in range(3)]
COCO = {
    "images": [{"id": 5, "file_name": "a.png", "width": 8, "height": 8}, {"id": 6, "file_name": "b.png"}],
    "annotations": [
        {"id": 1, "image_id": 5, "category_id": 3, "bbox": [1, 2, 4, 5], "iscrowd": 0},
        {"id": 2, "image_id": 6, "category_id": 7, "bbox": [0.5, 0.5, 3.5, 2], "area": 7},
    ],
    "categories": [{"id": 3, "name": "cat"}, {"id": 7, "name": "dog"}],
}
VOC = """<?xml version="1.0"?>
<annotation><size><width>8</width><height>8</height><depth>3</depth></size>
<object><name>cat</name><difficult>0</difficult>
<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>5</xmax><ymax>7</ymax></bndbox></object></annotation>
"""


def pixels(*shape):
    """Noise."""
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def encoded(picture, form, **options):
    """The bytes of a picture in a format."""
    file = io.BytesIO()
    picture.save(file, form, **options)
    return file.getvalue()


def pictures():
    """A picture of 8 x 8 in each format and mode that is likely to come, by name."""
    color, grey = Image.fromarray(pixels(8, 8, 3)), Image.fromarray(pixels(8, 8))
    exif = Image.Exif()
    exif[0x0112] = 6
    made = {
        "a.png": encoded(color, "PNG"),
        "b.png": encoded(color.quantize(16), "PNG"),
        "c.png": encoded(Image.fromarray(pixels(8, 8).astype(np.uint16) * 257), "PNG"),
        "a.jpg": encoded(color, "JPEG", exif=exif),
        "b.jpg": encoded(grey, "JPEG", progressive=True),
        "c.jpg": encoded(color.convert("CMYK"), "JPEG"),
        "a.tif": encoded(color, "TIFF"),
        "b.tif": encoded(Image.fromarray(pixels(8, 8).astype(np.float32) / 255), "TIFF"),
        "c.tif": encoded(grey, "TIFF", compression="tiff_lzw"),
        "a.gif": encoded(grey, "GIF", save_all=True, append_images=[grey.rotate(90)]),
        "a.bmp": encoded(color, "BMP"),
        "a.ppm": encoded(color, "PPM"),
        "a.webp": encoded(color, "WEBP"),
        "b.webp": encoded(color, "WEBP", lossless=True, exif=exif),
        "a.jp2": encoded(color, "JPEG2000"),
        "a.tga": encoded(color, "TGA"),
        "a.ico": encoded(color, "ICO", sizes=[color.size]),  # Pillow before 13 writes none below 16 x 16 by itself
    }
    if "AVIF" in Image.SAVE:
        made["a.avif"] = encoded(color, "AVIF")
    return made


def recipes():
    """Recipes of several tasks."""
    return {f"{name}.yaml": text.encode() for name, text in RECIPES.items()}


def run_folder(folder):
    """A run as training leaves it, but for checkpoints."""
    line = {"name": "train/1", "error": "OSError: truncated", "split": "train"}
    speed = {"environment": {"cpu": "one"}, "rows": SPEED}
    make_run(folder, summary={"metrics": [], "steps": 5}, certificate=certificate(), speed=speed)
    (folder / "quarantine.jsonl").write_text(json.dumps(line) + "\n")
    (folder / "config.yaml").write_text(yaml.safe_dump(RUN))
    kept = ("config.yaml", "facts.json", "network.json", "environment.json", "log.jsonl", "quarantine.jsonl")
    return contents(folder, *kept, "summary.json", "certificate.json", "speed.json")


def checkpoint(folder):
    """The last checkpoint of a network of four weights, as training in fp16 leaves it."""
    network = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(network.parameters())
    network(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    progress = {"step": 2, "evaluated": 2, "loss_sum": 0.5, "metrics": None}
    scaler = {"scale": 65536.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 9, "_growth_tracker": 1}
    state = {"progress": progress, "share": 0.5, "score": 0.25, "log_size": 0, "num_examples": [3, 2], "scaler": scaler}
    weights = {"model": network.state_dict(), "ema": network.state_dict()}
    (folder / "checkpoints").mkdir(parents=True)
    saved = save_checkpoint(folder / "checkpoints", Checkpoint(2, weights, optimizer.state_dict(), state))
    (folder / "log.jsonl").touch()
    return contents(folder, *(f"checkpoints/{saved.name}/{file.name}" for file in sorted(saved.iterdir())))


def opened_run(folder):
    """A run in the middle of training, of whose weights predictions can be made."""
    run, schedule = RunFolder(folder), {"kind": "linear", "start": 0.02, "end": 1.0}
    recipe = parse_recipe({**RUN, "training": {"threshold": schedule}})
    run.create(recipe, {"labels": LABELS}, {"attention": "castling"})
    network = recipe.make_task({"labels": LABELS}).build_network()
    weights, state = {"model": network.state_dict()}, {"share": 0.5, "score": 0.25}
    saved = save_checkpoint(run.checkpoints, Checkpoint(2, weights, {}, state))
    (folder / "config.yaml").write_text(yaml.safe_dump({**RUN, "training": {"threshold": schedule}}))
    of_checkpoint = (f"checkpoints/{saved.name}/{file.name}" for file in sorted(saved.iterdir()))
    return contents(folder, "config.yaml", "facts.json", *of_checkpoint)


def castled(folder):
    """A castled folder."""
    run = RunFolder(folder)
    recipe = parse_recipe(RUN)
    run.create(recipe, {"labels": LABELS}, {"attention": "castling"})
    network = recipe.make_task({"labels": LABELS}).build_network()
    save_file(network.state_dict(), folder / "model.safetensors")
    (folder / "certificate.json").write_text(json.dumps(certificate()))
    (folder / "config.yaml").write_text(yaml.safe_dump(RUN))
    names = ("config.yaml", "facts.json", "network.json", "certificate.json", "model.safetensors")
    files = contents(folder, *names)
    write_manifest(folder, files)
    shutil.rmtree(folder / "checkpoints")
    return contents(folder, *names, "manifest.json")


def idx(count=3, side=4, packed=False):
    """MNIST's files of both splits."""
    made = {"labels.txt": b"zero\none\ntwo\n"} if packed else {}
    for prefix in ("train", "t10k"):
        shapes = {"images-idx3": (count, side, side), "labels-idx1": (count,)}
        for name, shape in shapes.items():
            head = bytes([0, 0, 8, len(shape)]) + b"".join(struct.pack(">I", length) for length in shape)
            data = head + bytes(number % 3 for number in range(int(np.prod(shape))))
            file = f"{prefix}-{name}-ubyte"
            made[f"{file}.gz" if packed else file] = gzip.compress(data, mtime=0) if packed else data
    return made


def cifar_pickles(protocol):
    """CIFAR-10's test batch as it is published, of two pictures, and the names of its classes."""
    batch = {
        b"batch_label": b"testing",
        b"labels": [1, 2],
        b"data": pixels(2, 3072),
        b"filenames": [b"a.png", b"b.png"],
    }
    names = {b"label_names": [b"cat", b"dog", b"bird"], b"num_cases_per_batch": 2, b"num_vis": 3072}
    return {"test_batch": pickle.dumps(batch, protocol), "batches.meta": pickle.dumps(names, protocol)}


def cifar_sheets():
    """CIFAR as PNG sheets with json."""
    return {"test_batch.png": encoded(Image.fromarray(pixels(2, 1024, 3)), "PNG"), "test_lables.json": b"[1, 2]"}


def coco():
    """COCO's file of one split, with its pictures."""
    png = pictures()["a.png"]
    return {"annotations/instances_train2017.json": json.dumps(COCO).encode(), "train2017/a.png": png}


def voc():
    """VOC's files of one split."""
    png, lists = pictures()["a.png"], "ImageSets/Main/train.txt"
    return {"Annotations/a.xml": VOC.encode(), lists: b"a 1\n", "JPEGImages/a.png": png}


def yolo():
    """YOLO's files of one split."""
    png, text = pictures()["a.png"], b"0 0.5 0.5 0.25 0.5\n1 0.2 0.2 0.1 0.1\n"
    return {
        "data.yaml": b"names: [cat, dog]\ntrain: images/train\npath: .\n",
        "labels/train/a.txt": text,
        "images/train/a.png": png,
    }


def masks():
    """A picture with its mask, and the classes with their colours."""
    mask = Image.fromarray(pixels(8, 8) % 3)
    classes = {"ground": [120, 120, 120], "square": [255, 0, 0], "disc": [0, 0, 255]}
    return {
        "images/train/a.png": pictures()["a.png"],
        "annotations/train/a.png": encoded(mask, "PNG"),
        "classes.json": json.dumps(classes).encode(),
    }


def class_lists():
    """Lists of classes in each form."""
    return {
        "classes.txt": b"ground 120 120 120\nsquare 255 0 0\n",
        "named.json": b'[{"name": "ground", "color": [1, 2, 3]}, {"name": "disc", "color": [4, 5, 6]}]',
        "plain.json": b'["sky", "road", "ignore"]',
        "objectInfo150.txt": b"Idx\tRatio\tName\n1\t0.1\twall\n2\t0.2\tbuilding, edifice\n",
    }


def logits(folder):
    """Logits of two pictures."""
    save_file({"logits": torch.zeros(2, 3)}, folder / "logits.safetensors")
    (folder / "names.json").write_text(json.dumps(["train/a.png", "train/b.png"]))
    return contents(folder, "logits.safetensors", "names.json")


def weights():
    """Weights in the formats that are read."""
    tensors = {"weight": torch.zeros(2, 2), "bias": torch.ones(2)}
    made = {"a.safetensors": save(tensors)}
    for name, content in {"a.pth": tensors, "b.pt": {"state_dict": tensors, "epoch": 3}}.items():
        file = io.BytesIO()
        torch.save(content, file)
        made[name] = file.getvalue()
    return made


def huggingface():
    """What says which network of transformers is in a folder."""
    config = {"model_type": "vit", "architectures": ["ViTForImageClassification"], "image_size": 16, "patch_size": 8}
    config |= {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8}
    config |= {"id2label": {"0": "a", "1": "b", "2": "c"}}
    return {
        "config.json": json.dumps(config).encode(),
        "preprocessor_config.json": b'{"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}',
    }


def said():
    """What an exported file of a run says about itself."""
    run = {"recipe": RUN, "facts": {"labels": LABELS}}
    return Metadata("deit", (16, 16), 1, "classification", {"mean": [0.3]}, {"labels": LABELS}, ("output",), run=run)


def exported_onnx(folder):
    """An ONNX file that gives what it takes."""
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in ("image", "output")]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["image"], ["output"])], "one", ends[:1], ends[1:])
    model = onnx.helper.make_model(graph)
    onnx.helper.set_model_props(model, {KEY: said().to_json()})
    return {"model.onnx": model.SerializeToString()}


def exported_openvino(folder):
    """An OpenVINO file that gives what it takes."""
    image = opset13.parameter([1], name="image")
    model = openvino.Model([opset13.relu(image)], [image], "one")
    model.set_rt_info(said().to_json(), KEY)
    save_openvino(model, folder / "model.xml")
    return contents(folder, "model.xml", "model.bin")


def exported_torch(folder):
    """An archive as torch.export writes it, with nothing but what it says about itself."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("model/version", "3")
        archive.writestr(f"model/extra/{KEY}", said().to_json())
    return {"model.pt2": packed.getvalue()}


EXPORTED = {
    "onnx": ("onnx", exported_onnx),
    "openvino": ("xml", exported_openvino),
    "torch": ("pt2", exported_torch),
}


def contents(folder, *names):
    """The bytes of files by name."""
    return {name: (folder / name).read_bytes() for name in names}


def write(folder, files):
    """Write files by name, each as a new one: what is written over some file systems flush to the disk, which waits."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).unlink(missing_ok=True)
        (folder / name).write_bytes(content)
