"""A recipe that trains in less than a second: 96 real digits, 16 tokens, one block."""

import copy
import struct
from functools import partial

import numpy as np
import pytest
import torch
from box_pictures import box_recipe, write_boxes
from mask_pictures import SMALL_MASK2FORMER, mask_recipe, write_masks
from masked_pictures import masked_recipe, write_pictures
from sklearn.datasets import load_digits

from castling.settings import with_overrides
from castling.tasks.detection.task import Detection
from castling.training import parse_recipe

MICRO = {
    "task": "classification",
    "model": {
        "name": "castling_deit_tiny_patch16_224",
        "options": {
            "img_size": 16,
            "patch_size": 4,
            "embed_dim": 16,
            "depth": 1,
            "num_heads": 2,
            "drop_rate": 0.1,
        },
    },
    "data": {"source": "idx", "image_size": 16, "channels": 1, "mean": [0.3], "std": [0.4], "crop_share": 1.0},
    "augment": {"auto_augment": None, "erasing": 0.2, "mixup": 0.2, "cutmix": 0.0},
    "training": {
        "epochs": 2,
        "batch_size": 32,
        "learning_rate": {"peak": 2e-3},
        "threshold": {"kind": "linear", "start": 0.05, "end": 1.0},
        "ema_decay": 0.9,
        "clip_norm": 1.0,
        "workers": 0,
        "log_every": 1,
    },
}


@pytest.fixture(scope="session")
def few_digits(tmp_path_factory):
    """96 digits to train on and 32 to evaluate, as files of MNIST's form: three steps an epoch."""
    return write_few_digits(tmp_path_factory.mktemp("few_digits"), 96)


def write_few_digits(folder, num_train):
    digits = load_digits()
    pictures, labels = (digits.images[:128] * 15.9).astype(np.uint8), digits.target[:128].astype(np.uint8)
    for prefix, chosen in (("train", slice(0, num_train)), ("t10k", slice(96, 128))):
        header = struct.pack(">HBB3I", 0, 8, 3, len(pictures[chosen]), 8, 8)
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(header + pictures[chosen].tobytes())
        header = struct.pack(">HBBI", 0, 8, 1, len(labels[chosen]))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(header + labels[chosen].tobytes())
    return folder


@pytest.fixture
def fewer_digits(tmp_path):
    """One digit less than `few_digits` has to train on."""
    folder = tmp_path / "fewer_digits"
    folder.mkdir()
    return write_few_digits(folder, 95)


class Micro:
    """Makes a recipe, with overrides as on the command line.

    Attributes:
        calm: overrides without which several processes draw other numbers than one.
        torchrun: whether its processes are started as people start them, which takes long.
        as_two: overrides with which one process works as two do: batch norms and means over a batch see half of it.
        halve: lets batch norms alone see half of it, where means are over all processes; called with a monkeypatch.
        drawn: the share of a loss by which several processes may differ from one all the same, for each draws numbers
            that nothing calms, such as the points at which Mask2Former's losses are taken; 0 where there are none.
    """

    def __init__(self, content, calm=(), as_two=(), torchrun=False, halve=lambda patch: None, drawn=0.0):
        self.content, self.calm, self.as_two, self.torchrun = content, calm, as_two, torchrun
        self.halve, self.drawn = halve, drawn

    def __call__(self, *overrides):
        return parse_recipe(with_overrides(copy.deepcopy(self.content), list(overrides)))


@pytest.fixture
def micro(few_digits):
    """Makes the recipe of a classifier."""
    content = {**MICRO, "data": {**MICRO["data"], "root": str(few_digits)}}
    return Micro(content, calm=("augment.mixup=0", "model.options.drop_rate=0"), torchrun=True)


@pytest.fixture(scope="session")
def few_boxes(tmp_path_factory):
    """16 pictures with boxes to train on and 8 to evaluate: two steps an epoch."""
    pytest.importorskip("faster_coco_eval")
    return write_boxes(tmp_path_factory.mktemp("few_boxes") / "coco")


@pytest.fixture(scope="session")
def few_pictures(tmp_path_factory):
    """16 pictures without labels to train on and 6 to evaluate: two steps an epoch."""
    return write_pictures(tmp_path_factory.mktemp("few_pictures") / "waves")


@pytest.fixture(scope="session")
def few_masks(tmp_path_factory):
    """16 pictures with masks to train on and 8 to evaluate: two steps an epoch."""
    return write_masks(tmp_path_factory.mktemp("few_masks") / "shapes")


@pytest.fixture(params=["classification", "detection", "pretraining", "segmentation", "mask2former"])
def any_micro(request, micro):
    """Makes the recipe of each task in turn, and of segmentation with either decoder."""
    if request.param == "classification":
        return micro
    if request.param == "pretraining":
        return Micro(masked_recipe(request.getfixturevalue("few_pictures")))
    if request.param == "segmentation":
        return Micro(mask_recipe(request.getfixturevalue("few_masks")), as_two=("training.accumulate=2",))
    if request.param == "mask2former":
        pytest.importorskip("transformers")
        content = mask_recipe(request.getfixturevalue("few_masks")) | {"segmenter": SMALL_MASK2FORMER}
        return Micro(content, as_two=("training.accumulate=2",), drawn=0.1)
    return Micro(box_recipe(request.getfixturevalue("few_boxes")), halve=halve_detection)


def halve_detection(patch):
    """Let a detector look at one half of a batch after the other; its losses are those of the whole."""

    def looking_at_halves(network, images):
        first, second = (network(half) for half in images.chunk(2))
        per_point = ("points", "strides")
        return {name: part if name in per_point else torch.cat([part, second[name]]) for name, part in first.items()}

    losses = Detection.losses
    patch.setattr(
        Detection, "losses", lambda task, network, batch: losses(task, partial(looking_at_halves, network), batch)
    )
