"""Run folders for tests: made in a moment through the classes that training uses, or really trained for two steps."""

import json

import timm
from safetensors.torch import save_file

from castling.conversion import Certificate, LayerReport, NetworkReport
from castling.measure.metric import Metric
from castling.training import RunFolder, load_recipe, parse_recipe, train
from castling.training.records import EvalRecord, StepRecord

LAYERS = ("blocks.0.attn", "blocks.1.attn")
FILLED = [[0.0, 0.0], [0.001, 0.003], [0.02, 0.06], [0.0, 0.0], [0.0, 0.0]]  # two heads at five steps: opens, closes
SPEED = [
    {"size": 32, "macs": {"castled": 10, "softmax": 15}, "milliseconds": {"castled": 2.0, "softmax": 1.0}},
    {"size": 256, "macs": {"castled": 640, "softmax": 6400}, "milliseconds": {"castled": 4.0, "softmax": 29.2}},
]
MODELS = {
    "castling": {"name": "castling_deit_tiny_patch16_224"},
    "softmax": {"name": "castling_deit_tiny_patch16_224", "kernel": "softmax"},
    "converted": {"name": "vit_tiny_patch16_224", "convert": {}},
}
SIZES = {"img_size": 32, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2}


def metrics(top1):
    return [Metric("top1", top1), Metric("loss", 0.3, unit="", higher_is_better=False)]


def certificate(verdict="free", original=None, **changes):
    """What castling cost, as JSON; that of a converted run where the original's accuracy is given."""
    networks = {
        "with branch" if original is None else "converted": NetworkReport(
            metrics(0.9812), 123_456, 31_800_000, agreement=0.9875, largest_difference=0.25, median_difference=0.125
        ),
        "castled": NetworkReport(metrics(0.9779), 123_456, 28_700_000, 1.0, 0.0, 0.0),
    }
    if original is not None:
        networks = {"original": NetworkReport(metrics(original), 120_000, 33_000_000, 0.95, 0.5, 0.25), **networks}
    layers = [
        LayerReport(
            name=name,
            num_tokens=65,
            cut=1.0,
            can_empty=True,
            occupancy=[0.0, 0.0],
            peak=[0.02, 0.0625],
            opened=True,
            history=[(10, [0.02, 0.0625])],
        )
        for name in LAYERS
    ]
    content = {
        "verdict": verdict,
        "tolerance": 0.5,
        "lost": 0.33,
        "unit": "points",
        "num_examples": 360,
        "networks": networks,
        "state_dict_equal": True,
        "quadratic_tensors": [],
        "layers": layers if original is None else [],
        "advice": ["Close the mask & castle again."],
    }
    return json.loads(json.dumps(Certificate(**content | changes).to_json()))


def make_run(folder, attention="castling", filled=FILLED, records=(), evaluated=metrics, **files):
    """A run folder as training leaves it, but for checkpoints.

    Args:
        folder: where.
        attention: of its network.
        filled: occupancies of the heads, for each logged step.
        records: to be logged after these.
        evaluated: makes metrics of an accuracy.
        **files: contents of JSON files by their stem.
    """
    data = {"source": "digits", "image_size": 32, "channels": 1, "mean": [0.3], "std": [0.4]}
    recipe = parse_recipe({"task": "classification", "model": MODELS[attention], "data": data})
    run = RunFolder(folder)
    network = {"attention": attention, "branches": 2 if attention == "castling" else 0, "parameters": 123_456}
    run.create(recipe, {"labels": list("0123456789")}, network)
    for index, heads in enumerate(filled):
        occupancy = dict.fromkeys(LAYERS, heads) if attention == "castling" else {}
        threshold = 0.02 + 0.2 * index if attention == "castling" else None
        loss = 2.0 / (index + 1)
        run.log(StepRecord(10 * index, 50, float(index), loss, 1e-3, threshold=threshold, occupancy=occupancy))
        found = evaluated(0.5 + 0.1 * index)
        castled = None if attention == "softmax" else found
        run.log(EvalRecord(10 * index + 10, index + 1.0, found, castled, occupancy))
    for record in records:
        run.log(record)
    for stem, content in files.items():
        (folder / f"{stem}.json").write_text(json.dumps(content))
    return folder


def train_run(folder, attention="castling"):
    """A run of two steps on digits, with checkpoints; a converted one starts from weights beside it."""
    model = MODELS[attention] | {"options": SIZES}
    overrides = ["training.max_steps=2", "training.log_every=1"]
    if attention == "converted":
        weights = folder.parent / f"{folder.name}.safetensors"
        original = timm.create_model(model["name"], num_classes=10, in_chans=1, **SIZES)
        weights.parent.mkdir(parents=True, exist_ok=True)
        save_file(original.state_dict(), weights)
        model |= {"weights": str(weights), "convert": {"calibrate": 0}}
        overrides += ["training.blend={kind: fixed, start: 1.0}"]
    if attention != "castling":
        overrides.append("training.threshold=null")
    train(load_recipe("digits/castling", [f"model={json.dumps(model)}", *overrides]), folder)
    return folder
