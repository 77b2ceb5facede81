"""Segmentation behind the task interface: facts, windows, agreement; masks that stop a training before it starts."""

import pytest
import torch
from mask_pictures import CLASSES, mask_recipe, write_masks
from PIL import Image
from torch import nn

from castling.settings import with_overrides
from castling.tasks.segmentation.task import Segmentation
from castling.training import parse_recipe, train


def make_task(root, *overrides, facts=None):
    return parse_recipe(with_overrides(mask_recipe(root), overrides)).make_task(facts)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_masks(tmp_path_factory.mktemp("masks") / "shapes", num_train=8, num_val=4, size=(72, 48))


class Column(nn.Module):
    """Scores that depend on a pixel's place in what the network is shown: windows differ from the whole."""

    def __init__(self):
        super().__init__()
        self.shown = []
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, images):
        self.shown.append(tuple(images.shape[-2:]))
        small = images[..., ::4, ::4].mean(1)
        return torch.stack([small, -small, small * 0], 1)


def test_facts_are_classes_and_colours(root):
    task = make_task(root)
    assert task.facts["labels"] == list(CLASSES)
    assert "palette" in task.facts
    again = make_task(root / "gone", facts=task.facts)
    assert again.build_network().num_classes == len(CLASSES)


def test_a_split_of_other_classes_is_refused(root):
    with pytest.raises(ValueError, match="not the 2 of training"):
        make_task(root, facts={"labels": ["sky", "road"]}).loader("val", 2)


def test_training_sees_squares_and_evaluation_whole_pictures(root):
    task = make_task(root)
    batch = next(iter(task.loader("train", 4, seed=0)))
    assert batch["image"].shape == (4, 3, 64, 64)
    batch = next(iter(task.loader("val", 4)))
    assert batch["image"].shape == (4, 3, 64, 96)
    assert batch["labels"].shape == (4, 48, 72)


def test_losses_and_metrics_of_a_batch(root):
    task = make_task(root)
    network = task.build_network(training=True)
    losses = task.losses(network.train(), next(iter(task.loader("train", 4, seed=0))))
    losses.total.backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
    batch, meter = next(iter(task.loader("val", 4))), task.meter()
    meter.update(task.forward(network.eval(), batch), batch)
    assert [metric.name for metric in meter.result()[:3]] == ["miou", "macc", "pacc"]


def test_a_window_is_moved_over_pictures(root):
    batch = next(iter(make_task(root).loader("val", 4)))
    whole, parts = Column(), Column()
    wanted = make_task(root).forward(whole, batch)
    found = make_task(root, "window={size: 64, stride: 32}").forward(parts, batch)
    assert whole.shown == [(64, 96)]
    assert set(parts.shown) == {(64, 64)}
    torch.testing.assert_close(found, wanted)
    with pytest.raises(ValueError, match="stride must be at most the window"):
        make_task(root, "window={size: 64, stride: 96}")


def test_agreement_is_the_share_of_pixels(root):
    task = make_task(root)
    batch = next(iter(task.loader("val", 4)))
    one = torch.zeros(4, 3, 16, 24)
    one[:, 1] = 1
    other = one.clone()
    other[2, 2] = 2
    assert task.agreement(one, one, batch).tolist() == [1, 1, 1, 1]
    assert task.agreement(one, other, batch).tolist() == [1, 1, 0, 1]


def test_predictions_have_the_size_of_their_pictures(root):
    task = make_task(root)
    network = task.build_network()
    pictures = [Image.new("RGB", size) for size in ((50, 40), (72, 48), (50, 40))]
    found = task.predictor(network)(pictures)
    assert [prediction.mask.size for prediction in found] == [(50, 40), (72, 48), (50, 40)]
    through = make_task(root, "window={size: 32, stride: 32}").predictor(network)(pictures)
    assert [prediction.mask.size for prediction in through] == [(50, 40), (72, 48), (50, 40)]


def test_it_is_deployed_with_its_classes(root):
    deployment = make_task(root).deployment()
    assert deployment.example.shape == (1, 3, 64, 64)
    assert deployment.facts["labels"] == list(CLASSES)
    assert deployment.outputs == ("scores",)


@pytest.mark.parametrize("decoder", ["fpn", "mask2former"])
def test_every_decoder_trains_and_gives_scores(root, decoder):
    if decoder == "mask2former":
        pytest.importorskip("transformers")
    sizes = "dim: 32, fpn_dim: 16, queries: 5, layers: 1, encoder_layers: 1, ffn_dim: 32, heads: 2, points: 64"
    task = make_task(root, f"segmenter={{decoder: {decoder}, {sizes}}}")
    network = task.build_network(training=True).train()
    task.losses(network, next(iter(task.loader("train", 2, seed=0)))).total.backward()
    batch = next(iter(task.loader("val", 2)))
    assert task.forward(network.eval(), batch).shape == (2, 3, 16, 24)


@pytest.fixture
def many(tmp_path):
    return write_masks(tmp_path / "shapes", num_train=24, num_val=24)


@pytest.mark.parametrize("held_out", [0, 0.25])
@pytest.mark.parametrize(
    ("split", "mask", "said"),
    [
        ("train", Image.new("L", (64, 64), 77), r"train/019\.png: unknown value 77 \(4,096 pixels\); legal: 0-2"),
        ("train", Image.new("L", (64, 60)), r"train/019\.png: the mask has 64 x 60 pixels, its picture 64 x 64"),
        ("val", Image.new("L", (64, 64), 77), r"val/019\.png: unknown value 77"),
        ("train", None, r"1 pictures of train have no mask: images/train/019\.png"),
    ],
)
def test_a_wrong_mask_anywhere_stops_a_run_before_its_folder_is_made(split, mask, said, held_out, many, tmp_path):
    """The twentieth is not among those that are looked at whenever a split is opened."""
    path = many / "annotations" / split / "019.png"
    path.unlink() if mask is None else mask.save(path)
    recipe = parse_recipe(with_overrides(mask_recipe(many, max_steps=1), [f"data.held_out={held_out}"]))
    if held_out and split == "val":  # which is not opened
        train(recipe, tmp_path / "run")
        return
    with pytest.raises(ValueError, match=said):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_masks_of_a_run_that_goes_on_are_not_all_looked_at_again(root, tmp_path, monkeypatch):
    recipe = parse_recipe(mask_recipe(root, max_steps=1))
    looks = []
    monkeypatch.setattr(Segmentation, "check_data", lambda task: looks.append(task))
    for resume in (False, True):
        train(recipe, tmp_path / "run", resume)
    assert len(looks) == 1


def test_masks_that_cannot_be_read_and_turned_pictures_are_no_reason_to_refuse(many):
    (many / "annotations" / "train" / "019.png").write_bytes(b"no picture")
    turned = Image.new("RGB", (50, 64))
    exif = turned.getexif()
    exif[0x0112] = 6  # a quarter, as cameras say it
    for number, size in ((3, (64, 50)), (4, (50, 64))):  # the mask is of the upright picture, or of the stored one
        turned.save(many / "images" / "train" / f"{number:03d}.png", exif=exif)
        Image.new("L", size).save(many / "annotations" / "train" / f"{number:03d}.png")
    make_task(many).check_data()


def test_a_wrong_mask_stops_training_before_it_starts(tmp_path):
    root = write_masks(tmp_path / "shapes", num_train=4, num_val=1)
    Image.new("L", (64, 64), 77).save(root / "annotations" / "train" / "000.png")
    with pytest.raises(ValueError, match="77"):
        make_task(root).build_network(training=True)
