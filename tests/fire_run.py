"""The run that is put under fire: scanned digits in a folder of pictures, ten steps an epoch, two reading processes."""

import multiprocessing
import os

import numpy as np
from forked import start
from PIL import Image
from sklearn.datasets import load_digits

from castling.training.recipe import parse_recipe, recipe_text

LINES_PER_EPOCH = 11  # of the log: ten steps and an evaluation


def write_digits(folder, num_train=160, num_val=40):
    """Digits as pictures, a folder for each split and class."""
    digits = load_digits()
    for number in range(num_train + num_val):
        split = "train" if number < num_train else "val"
        place = folder / split / str(digits.target[number])
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray((digits.images[number] * 15.9).astype(np.uint8)).save(place / f"{number}.png")
    return folder


def write_recipe(file, pictures, epochs):
    """A small network with a branch, dropout, mixup and a moving average: all that a run has to remember."""
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2, "drop_rate": 0.1}
    looks = {"image_size": 16, "channels": 1, "mean": [0.3], "std": [0.4], "crop_share": 1.0}
    training = {
        "epochs": epochs,
        "batch_size": 16,
        "learning_rate": {"peak": 2e-3},
        "threshold": {"kind": "linear", "start": 0.05, "end": 1.0},
        "ema_decay": 0.9,
        "clip_norm": 1.0,
        "workers": 2,
        "log_every": 1,
        "checkpoint_every": 3,
    }
    content = {
        "task": "classification",
        "model": {"name": "castling_deit_tiny_patch16_224", "options": sizes},
        "data": {"source": "folder", "root": str(pictures), **looks},
        "augment": {"auto_augment": None, "erasing": 0.2, "mixup": 0.2, "cutmix": 0.0},
        "training": training,
    }
    file.write_text(recipe_text(parse_recipe(content)))
    return file


def call(arguments, words):
    """The command in a process that has everything imported, at the head of a group of its own."""
    from castling.cli.main import main

    multiprocessing.set_start_method("fork", force=True)  # readers are children of the command, as they usually are
    os.setsid()
    file = os.open(words, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    raise SystemExit(main(arguments))


class Forked:
    """As `faults.Command`, but starts at once."""

    def __init__(self, arguments, words):
        words.write_text("")
        self._process = start(call, [str(argument) for argument in arguments], words)
        self.pid = self._process.pid

    def exit_code(self):
        return self._process.exitcode
