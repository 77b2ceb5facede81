import pytest
import timm
import torch
from torch import nn

import castling
from castling.measure.resolution import cost_over_resolution

SMALL = {
    "depth": 1,
    "embed_dim": 32,
    "num_heads": 2,
    "patch_size": 4,
    "img_size": 32,
    "in_chans": 1,
    "num_classes": 10,
    "class_token": False,
    "global_pool": "avg",
}


def make(**options):
    return timm.create_model("castling_deit_tiny_patch16_224", **SMALL, **options)


def test_castled_macs_grow_with_the_tokens_and_softmax_macs_with_their_square():
    models = {"castled": castling.castle(make()), "softmax": make(kernel="softmax")}
    rows = cost_over_resolution(models, [64, 32, 128], channels=1, repeats=1)
    assert [row["size"] for row in rows] == [32, 64, 128]
    castled, softmax = ([row["macs"][name] for row in rows] for name in ("castled", "softmax"))
    head = 32 * 10
    assert [macs - head for macs in castled[1:]] == [4 * (castled[0] - head), 16 * (castled[0] - head)]
    # Two products of N x N x 32, which a doubled side makes 16 times as large.
    attention = [2 * (size // 4) ** 4 * 32 for size in (32, 64, 128)]
    linear = [macs - head - quadratic for macs, quadratic in zip(softmax, attention, strict=True)]
    assert linear[1:] == [4 * linear[0], 16 * linear[0]]
    assert all(milliseconds > 0 for row in rows for milliseconds in row["milliseconds"].values())


def test_the_largest_size_comes_first_and_each_is_reported_once():
    done = []
    rows = cost_over_resolution({"conv": nn.Conv2d(3, 4, 1)}, [8, 16, 8], repeats=1, on_size=done.append)
    assert done == [16, 8]
    assert [row["macs"] for row in rows] == [{"conv": 8 * 8 * 12}, {"conv": 16 * 16 * 12}]


def test_models_are_measured_in_evaluation_mode_and_left_as_they_were():
    class Probe(nn.Module):
        def __init__(self):
            super().__init__()
            self.frozen = nn.BatchNorm2d(3).eval()
            self.norm = nn.BatchNorm2d(3)

        def forward(self, x):
            assert not self.training
            assert not torch.is_grad_enabled()
            return self.norm(self.frozen(x))

    model = Probe()
    model.norm.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    cost_over_resolution({"probe": model}, [4], repeats=1)
    assert (model.training, model.frozen.training, model.norm.training) == (True, False, True)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_a_failure_leaves_the_mode_as_it_was():
    model = nn.Conv2d(3, 4, 1)
    with pytest.raises(RuntimeError):
        cost_over_resolution({"conv": model}, [4], channels=1)
    assert model.training


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"models": {}}, "models is empty"),
        ({"sizes": []}, r"got \[\]"),
        ({"sizes": [8, 0]}, r"got \[8, 0\]"),
        ({"channels": 0}, "got 0 and 3"),
        ({"repeats": 0}, "got 3 and 0"),
    ],
)
def test_bad_input_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        cost_over_resolution(**{"models": {"conv": nn.Conv2d(3, 4, 1)}, "sizes": [8]} | changes)
