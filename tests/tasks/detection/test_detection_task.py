"""Detection behind the interface: facts, network, batches, losses, agreement and what it says of pictures."""

import json

import numpy as np
import pytest
import timm
import torch
from box_pictures import box_recipe, write_boxes
from PIL import Image
from safetensors.torch import save_file

from castling.tasks.batches import Shard
from castling.tasks.detection.decoding import Found
from castling.tasks.detection.predict import BoxOptions, interpret_boxes
from castling.tasks.detection.task import shared_objects
from castling.tasks.prediction import Seen
from castling.tasks.task import Moment
from castling.training import parse_recipe


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_boxes(tmp_path_factory.mktemp("boxes") / "coco", num_train=10, num_val=4)


@pytest.fixture
def make(root):
    """Makes the task, with sections of the recipe changed."""

    def make_task(facts=None, **sections):
        recipe = box_recipe(root)
        for name, values in sections.items():
            recipe[name] = {**recipe.get(name, {}), **values} if isinstance(values, dict) else values
        return parse_recipe(recipe).make_task(facts)

    return make_task


def test_facts_are_the_classes_and_their_numbers(make):
    assert make().facts == {"labels": ["square", "disc"], "category_ids": [3, 7]}


def test_other_classes_than_those_of_training_are_refused(make):
    task = make({"labels": ["square", "ring"], "category_ids": [3, 8]})
    with pytest.raises(ValueError, match="first that only one of them has: 'disc' with id 7"):
        task.loader("val", 2)


def test_the_network_has_a_score_of_each_class_and_a_box_at_every_point(make):
    task = make()
    network = task.build_network(training=True).eval()
    outputs = network(torch.zeros(2, 3, 64, 96))
    points = sum(-(-64 // stride) * -(-96 // stride) for stride in (8, 16, 32, 64))
    assert {name: value.shape for name, value in outputs.items()} == {
        "scores": (2, points, 2),
        "boxes": (2, points, 4),
    }
    assert set(network.state_dict()) == set(task.build_network().state_dict())


def test_the_backbone_starts_from_a_classifiers_weights(make, tmp_path):
    classifier = timm.create_model("castling_lcnet_vit_small", scale=0.25, num_heads=(2, 2), num_classes=5)
    save_file(classifier.state_dict(), tmp_path / "classifier.safetensors")
    network = make(model={"weights": str(tmp_path / "classifier.safetensors")}).build_network(training=True)
    for name, value in network.backbone.model.state_dict().items():
        assert torch.equal(value, classifier.state_dict()[name]), name
    other = timm.create_model("castling_lcnet_vit_small", scale=0.5, num_heads=(2, 2), num_classes=5)
    save_file(other.state_dict(), tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="fit"):
        make(model={"weights": str(tmp_path / "other.safetensors")}).build_network(training=True)


def test_training_batches_are_varied_and_evaluation_is_not(make):
    task = make()
    train, val = next(iter(task.loader("train", 4, seed=0))), next(iter(task.loader("val", 4)))
    assert train["image"].shape == val["image"].shape == (4, 3, 64, 64)
    assert val["labels"].shape[1] == val["boxes"].shape[1] > 0
    assert val["size"].tolist() == [[64, 64]] * 4
    plain = next(iter(task.loader("train", 10)))
    again = next(iter(make(augment={"crop": 0.0, "flip": 0.0, "color": 0.0}).loader("train", 4, seed=0)))
    assert torch.equal(again["image"], plain["image"][again["index"]])
    assert not torch.equal(train["image"], plain["image"][train["index"]])
    halves = [next(iter(task.loader("train", 4, seed=0, shard=Shard(rank, 2)))) for rank in range(2)]
    assert torch.equal(torch.cat([half["image"] for half in halves]), train["image"])


def test_the_step_decides_the_size_and_progress_the_assigner(make):
    task = make(data={"sizes": [32, 64, 96]}, static_share=0.5)
    batch = next(iter(task.loader("train", 4, seed=0)))
    assert batch["image"].shape[-1] == 96  # read at the largest
    seen = [task.at_moment(batch, Moment(step, 30)) for step in range(30)]
    assert {moment["image"].shape[-1] for moment in seen} == {32, 64, 96}
    for moment in seen:
        factor = moment["image"].shape[-1] / 96
        torch.testing.assert_close(moment["boxes"], batch["boxes"] * factor)
    assert [moment["assigner"] for moment in seen] == ["atss"] * 15 + ["task_aligned"] * 15
    again = task.at_moment(batch, Moment(3, 30))
    assert torch.equal(again["image"], seen[3]["image"])


@pytest.mark.slow
@pytest.mark.parametrize("head", ["v1", "v2"])
def test_losses_fall(make, head):
    task = make(detector={"head": head})
    network, batch = task.build_network(training=True).train(), next(iter(task.loader("train", 8, seed=0)))
    optimizer, totals = torch.optim.AdamW(network.parameters(), lr=3e-3), []
    for _ in range(30):
        found = task.losses(network, batch)
        assert set(found.parts) == {"vfl", "giou", "dfl"}
        optimizer.zero_grad()
        found.total.backward()
        optimizer.step()
        totals.append(found.total.item())
    assert totals[-1] < 0.8 * max(totals[:10])  # SimOTA finds more points as boxes get better


def test_agreement_is_the_share_of_objects_that_both_see(make):
    task = make()
    outputs = {
        "scores": torch.tensor([[[0.9, 0.0], [0.8, 0.0]]] * 3),
        "boxes": torch.tensor([[[0.0, 0, 9, 9]] * 2] * 3),
    }
    outputs["boxes"][:, 1] += 20
    others = {name: value.clone() for name, value in outputs.items()}
    others["boxes"][1, 1] += 30  # one of two is elsewhere
    others["scores"][2] = others["scores"][2].flip(1)  # another class
    assert task.agreement(outputs, others, {}).tolist() == [1.0, 0.5, 0.0]
    nothing = Found(torch.zeros(0), torch.zeros(0), torch.zeros(0, 4))
    assert shared_objects(nothing, nothing) == 1


def outputs_of(*objects):
    """Raw outputs of one picture with these (label, score, box) in it."""
    scores, boxes = torch.zeros(1, len(objects), 2), torch.zeros(1, len(objects), 4)
    for place, (label, score, box) in enumerate(objects):
        scores[0, place, label], boxes[0, place] = score, torch.tensor(box)
    return {"scores": scores, "boxes": boxes}


def test_predictions_are_in_pixels_of_the_picture():
    outputs = outputs_of((1, 0.9, [8.0, 8.0, 40.0, 32.0]), (0, 0.5, [0.0, 0.0, 16.0, 90.0]), (0, 0.1, [0.0, 0, 9, 9]))
    interpret = interpret_boxes(["square", "disc"], [3, 7], 64, BoxOptions())
    (found,) = interpret(outputs, [Seen("a.png", (128, 32))])
    assert [one.label for one in found.objects] == ["disc", "square"]
    assert [list(one.box) for one in found.objects] == [[16, 4, 80, 16], [0, 0, 32, 32]]
    assert found.line() == "a.png: 1 disc (0.90), 1 square (0.50)"
    said = json.loads(json.dumps(found.to_json()))
    assert said["objects"][0] == {
        "label": "disc", "score": pytest.approx(0.9), "box": [16, 4, 80, 16], "category_id": 7
    }  # fmt: skip
    drawn = np.asarray(found.draw(Image.new("RGB", (128, 32))))
    assert drawn.shape == (32, 128, 3)
    assert drawn[4:16, 16].any(axis=1).all()  # the left side of the first
    (nothing,) = interpret_boxes(["square", "disc"], [3, 7], 64, BoxOptions(score=0.95))(outputs, [Seen("a", (9, 9))])
    assert nothing.line() == "a: nothing"


def test_results_as_coco_has_them():
    interpret = interpret_boxes(["square", "disc"], [3, 7], 64, BoxOptions(form="coco"))
    for name, image_id in (("x/000042.png", 42), ("x/cat.png", "cat")):
        (found,) = interpret(outputs_of((1, 0.5, [8.0, 8.0, 40.0, 32.0])), [Seen(name, (64, 64))])
        assert found.to_json() == [
            {"image_id": image_id, "category_id": 7, "bbox": [8.0, 8.0, 32.0, 24.0], "score": 0.5}
        ]


def test_the_predictor_takes_pictures_in_any_form(make, root):
    task = make()
    predictor = task.predictor(task.build_network(), BoxOptions(score=0.0, at_most=3))
    path = root / "val2017" / "000000000001.png"
    array = np.asarray(Image.open(path))
    found = predictor([path, Image.open(path), array, torch.from_numpy(array.copy()).permute(2, 0, 1)])
    assert len({str(one.objects) for one in found}) == 1
    assert len(found[0].objects) == 3


def test_bad_settings_are_named(make):
    for sections, message in [
        ({"detector": {"neck": "lcpn"}}, "did you mean 'lcpan'"),
        ({"static_share": 2.0}, "static_share must lie in"),
        ({"data": {"image_size": 100}}, "multiples of 32"),
        ({"select": {"score": 2}}, "score must lie in"),
    ]:
        recipe = {**box_recipe("nowhere"), "select": {}, "static_share": 0.3}
        for name, values in sections.items():
            recipe[name] = {**recipe[name], **values} if isinstance(values, dict) else values
        with pytest.raises(ValueError, match=message):
            parse_recipe(recipe)
    with pytest.raises(ValueError, match="strides"):
        make(model={"name": "castling_deit_tiny_patch16_224", "options": {}}).build_network()
