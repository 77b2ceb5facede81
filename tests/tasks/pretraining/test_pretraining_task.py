"""Masked pretraining behind the interface: batches, losses, agreement, drawings, and weights for what comes next."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from masked_pictures import masked_recipe, write_pictures
from PIL import Image
from safetensors.torch import save_file

from castling.conversion import castle, certify, mask_advice
from castling.tasks.batches import Shard
from castling.tasks.classification.data import DataConfig
from castling.tasks.classification.task import Classification, ClassificationConfig
from castling.tasks.pretraining.data import CropConfig, PretrainingData
from castling.tasks.pretraining.predict import HidingOptions
from castling.training import parse_recipe, train
from castling.training.evaluation import evaluate


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_pictures(tmp_path_factory.mktemp("pictures") / "waves")


@pytest.fixture
def make(root):
    """Makes the task, with sections of the recipe changed."""

    def make_task(**sections):
        recipe = masked_recipe(root)
        for name, values in sections.items():
            recipe[name] = {**recipe.get(name, {}), **values} if isinstance(values, dict) else values
        return parse_recipe(recipe).make_task()

    return make_task


def test_examples_say_what_is_seen(make):
    task = make()
    assert (task.patch, task.masked) == ((8, 8), (16, 4))
    batch = next(iter(task.loader("val", 6)))
    assert batch["image"].shape == (6, 3, 32, 32)
    assert batch["visible"].shape == (6, 4)
    assert len({tuple(places) for places in batch["visible"].tolist()}) > 1


def test_evaluation_hides_the_same_whoever_asks(make):
    whole = next(iter(make().loader("val", 6)))
    torch.manual_seed(1)
    halves = [next(iter(make().loader("val", 6, shard=Shard(rank, 2)))) for rank in range(2)]
    for name in ("image", "visible", "index"):
        assert torch.equal(torch.cat([half[name] for half in halves]), whole[name])


def test_training_hides_others_in_every_epoch_whatever_the_number_of_processes(make):
    task = make()
    loader = task.loader("train", 8, seed=0)
    first, again = next(iter(loader)), next(iter(task.loader("train", 8, seed=0)))
    assert torch.equal(first["visible"], again["visible"])
    halves = [next(iter(task.loader("train", 8, seed=0, shard=Shard(rank, 2)))) for rank in range(2)]
    for name in ("image", "visible"):
        assert torch.equal(torch.cat([half[name] for half in halves]), first[name])
    seen = {}
    for epoch in range(2):
        loader.seek(epoch)
        for batch in loader:
            for index, places in zip(batch["index"].tolist(), batch["visible"].tolist(), strict=True):
                seen.setdefault(index, set()).add(tuple(places))
    assert sum(len(places) == 2 for places in seen.values()) >= len(seen) - 2


@pytest.mark.parametrize("source", ["digits", "folder"])
def test_pictures_come_from_datasets_and_plain_folders(make, tmp_path, source):
    (tmp_path / "deep").mkdir()
    for number in range(40):
        Image.new("RGB", (36, 40), (number, 0, 0)).save(tmp_path / "deep" / f"{number}.jpg")
    root = None if source == "digits" else str(tmp_path)
    task = make(data={"source": source, "root": root})
    batch = next(iter(task.loader("train", 4, seed=0)))
    assert batch["image"].shape == (4, 3, 32, 32)
    assert len(task.sources["val"]) > 0
    assert len(task.sources["train"]) + len(task.sources["val"]) == (1797 if source == "digits" else 40)


def test_the_loss_falls(make):
    task = make(augment={"crop_scale": None, "flip": 0.0})
    network, totals = task.build_network(training=True).train(), []
    optimizer = torch.optim.AdamW(network.parameters(), lr=5e-3)
    batch = next(iter(task.loader("train", 8, seed=0)))
    for _ in range(30):
        loss = task.losses(network, batch).total
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        totals.append(loss.item())
    assert totals[-1] < 0.8 * totals[0]


def test_the_meter_has_what_the_loss_has_and_processes_add_up(make):
    task = make()
    network = task.build_network(training=True).eval()
    (found,) = evaluate(task, network, task.loader("val", 4)).model
    batches = list(task.loader("val", 6))
    assert found.value == pytest.approx(task.losses(network, batches[0]).total.item(), rel=1e-5)
    assert (found.name, found.higher_is_better) == ("error", False)


def test_agreement_is_the_share_of_hidden_patches_drawn_alike(make):
    task = make()
    batch = {"visible": torch.tensor([[0, 1, 2, 3], [0, 1, 2, 3]])}
    drawn = torch.randn(2, 16, 192)
    other = drawn.clone()
    other[0, 4:7] += 0.2  # three of twelve hidden ones
    other[1, :4] += 5.0  # of those that are seen nobody asks
    other[1, 4:] += 0.05
    assert task.agreement({"patches": drawn}, {"patches": other}, batch).tolist() == [0.75, 1.0]


def test_the_certificate_is_about_what_is_drawn_and_about_the_tokens_that_are_seen(make):
    task = make()
    network = task.build_network(training=True).eval()
    found = certify({"with branch": network, "castled": castle(network)}, task, task.loader("val", 3))
    assert {layer.num_tokens for layer in found.layers} == {5}
    assert [layer.name for layer in found.layers] == ["backbone.blocks.0.attn", "backbone.blocks.1.attn"]
    assert found.quadratic_tensors == []
    assert (found.kept_softmax, found.state_dict_equal, found.unit) == ([], True, "")
    assert found.networks["castled"].metrics[0].name == "error"


def test_the_advice_before_training_counts_the_tokens_that_are_seen(make):
    task = make()
    [inputs] = task.training_inputs()
    [sentence] = mask_advice(task.build_network(), inputs, last_threshold=0.1)
    assert sentence.startswith("2 attentions see 5 keys")
    assert mask_advice(task.build_network(), inputs, last_threshold=0.2) == []


def test_training_says_so(root, tmp_path):
    recipe = masked_recipe(root, max_steps=1, threshold=None)
    recipe["model"]["attention"] = {"threshold": 0.1}  # enough for the 17 keys of a whole picture
    train(parse_recipe(recipe), tmp_path / "run")
    assert "2 attentions see 5 keys" in (tmp_path / "run" / "events.jsonl").read_text()


def test_deployed_it_gives_features_and_no_engine_is_measured_by_drawings(make):
    task = make()
    deployment = task.deployment()
    network = task.build_network().eval()
    assert {name: value.shape for name, value in network(deployment.example).items()} == {"features": (1, 16, 16)}
    assert deployment.preprocessing["mean"] == (0.485, 0.456, 0.406)
    with pytest.raises(ValueError, match="there is no error to measure it by"):
        task.forward(lambda images: {}, {"image": deployment.example})


def test_predictions_are_drawn_and_said(make, root):
    task = make()
    network = task.build_network(training=True)
    path = root / "val" / "0.png"
    array = np.asarray(Image.open(path))
    first, second = task.predictor(network)([path, array])
    assert first.drawing_error == second.drawing_error > 0
    assert (first.num_hidden, first.num_patches) == (12, 16)
    assert first.line() == f"{path}: 12 of 16 patches hidden, drawn with an error of {first.drawing_error:.4g}"
    assert json.loads(json.dumps(first.to_json())) == {
        "name": str(path), "drawing_error": first.drawing_error, "num_hidden": 12, "num_patches": 16, "error": None
    }  # fmt: skip
    drawn = first.draw(Image.open(path))
    assert drawn.size == (3 * 96 + 8, 96)
    whole = np.asarray(drawn.crop((200, 0, 296, 96)).resize((32, 32), Image.Resampling.NEAREST))
    seen = np.asarray(drawn.crop((0, 0, 96, 96)).resize((32, 32), Image.Resampling.NEAREST))
    grey = (seen == 128).all(axis=2)
    assert grey.mean() == pytest.approx(0.75, abs=0.02)
    assert (seen[~grey] == whole[~grey]).all()
    middle = np.asarray(drawn.crop((100, 0, 196, 96)).resize((32, 32), Image.Resampling.NEAREST))
    assert (middle[~grey] == whole[~grey]).all()
    assert (middle[grey] != whole[grey]).any()
    (half,) = task.predictor(network, HidingOptions(masked=0.5, seed=1))(path)
    assert half.num_hidden == 8
    for options in ({"masked": 1.0}, {"seed": -1}):
        with pytest.raises(ValueError, match=next(iter(options))):
            HidingOptions(**options)


@pytest.mark.parametrize("normalised", [True, False])
def test_a_perfect_drawing_looks_like_the_picture(make, normalised):
    from castling.tasks.pretraining.drawing import draw_parts
    from castling.tasks.pretraining.patches import normalise, to_patches

    task = make(normalised=normalised)
    data, batch = task.config.data, next(iter(task.loader("val", 2)))
    patches = to_patches(batch["image"], (8, 8))
    drawn = normalise(patches)[0] if normalised else patches
    rows = draw_parts(drawn, batch["image"], batch["visible"], (8, 8), normalised, data.mean, data.std)
    for row in rows:
        middle, whole = (np.asarray(row.crop((left, 0, left + 96, 96)), int) for left in (100, 200))
        assert abs(middle - whole).max() <= 1


def test_the_report_shows_drawings_spread_over_the_split(make):
    task = make()
    (gallery,) = task.examine(task.build_network().eval(), task.loader("val", 2))
    assert len(gallery.pictures) == 6
    assert gallery.pictures[0][1].startswith("val/0.png: ")
    assert gallery.pictures[0][0].size == (296, 96)


def test_its_weights_start_a_classifier(make, root, tmp_path):
    task = make()
    pretrained = task.build_network(training=True)
    for parameter in pretrained.parameters():
        torch.nn.init.normal_(parameter)
    save_file(pretrained.state_dict(), tmp_path / "mae.safetensors")
    model = replace(task.config.model, weights=str(tmp_path / "mae.safetensors"))
    config = ClassificationConfig(model, DataConfig(source="digits", image_size=32))
    classifier = Classification(config, {"labels": ["a", "b"]}).build_network(training=True)
    for name, value in pretrained.backbone.state_dict().items():
        assert torch.equal(classifier.state_dict()[name], value), name
    assert set(classifier.state_dict()) - set(pretrained.backbone.state_dict()) == {"head.weight", "head.bias"}
    again = make(model={"weights": str(tmp_path / "mae.safetensors")}).build_network(training=True)
    assert torch.equal(again.backbone.pos_embed, pretrained.backbone.pos_embed)  # no new positions


def test_a_network_at_another_size(make):
    task = make().elsewhere(image_size=64)
    assert task.masked == (64, 16)
    task = make(model={"input_size": 64}, data={"image_size": 64})
    network = task.build_network(training=True)
    assert network.backbone.pos_embed.shape[1] == 65
    task.build_network().load_state_dict(network.state_dict())


def test_bad_settings_are_named(make):
    for sections, message in [
        ({"masked": 1.0}, "masked must lie between 0 and 1; got 1.0"),
        ({"model": {"convert": {}}}, "pretrain the network as it is, then convert it"),
        ({"decoder": {"dim": 6}}, "multiple of 4"),
        ({"data": {"source": "foldr"}}, "did you mean 'folder'"),
    ]:
        with pytest.raises(ValueError, match=message):
            make(**sections)
    with pytest.raises(ValueError, match="36 x 36 does not fit patches of 8 x 8"):
        make(data={"image_size": 36}).loader("val", 2)
    assert PretrainingData().source == "folder"
    assert CropConfig().auto_augment is None
