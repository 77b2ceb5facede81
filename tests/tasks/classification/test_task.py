import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from small_task import CLASSES, MODEL, TINY, UNMIXED, Constant, make_task
from torch import nn

from castling.measure.metric import as_values
from castling.tasks.batches import Shard, seeded
from castling.tasks.classification.data import AugmentConfig, DataConfig
from castling.tasks.classification.distillation import DistillationConfig
from castling.tasks.classification.losses import label_loss
from castling.tasks.classification.metrics import Accuracy
from castling.tasks.classification.predict import LabelOptions
from castling.tasks.classification.task import Classification, ClassificationConfig
from castling.tasks.networks import NetworkConfig
from castling.tasks.task import Moment


def evaluate(task, network, *loaders):
    """Metrics by one meter for each loader, merged."""
    meters = []
    for loader in loaders:
        meters.append(task.meter())
        for batch in loader:
            meters[-1].update(task.forward(network, batch), batch)
    for meter in meters[1:]:
        meters[0].merge(meter)
    return as_values(meters[0].result())


def test_labels_and_counts_come_from_the_data(data):
    task = make_task(data)
    assert task.labels == CLASSES
    assert [task.loader(split, 4).num_examples for split in ("train", "val")] == [12, 6]
    assert json.loads(json.dumps(task.facts)) == {"labels": CLASSES}
    assert task.build_network()(data.example()).shape == (1, 3)


def test_the_step_decides_the_size_of_training_pictures(data):
    task = make_task(replace(data, image_size=32, sizes=(16, 32, 48)))
    batch = next(iter(task.loader("train", 4, seed=0)))
    assert batch["image"].shape[-1] == 48  # read at the largest
    seen = [task.at_moment(batch, Moment(step, 30))["image"] for step in range(30)]
    assert {images.shape[-1] for images in seen} == {16, 32, 48}
    assert torch.equal(task.at_moment(batch, Moment(3, 30))["image"], seen[3])
    assert next(iter(task.loader("val", 4)))["image"].shape[-1] == 32  # evaluation has its own
    assert task.deployment().example.shape[-1] == 32


def test_without_sizes_training_pictures_stay_as_they_are(data):
    task = make_task(data)
    batch = next(iter(task.loader("train", 4, seed=0)))
    assert task.at_moment(batch, Moment(3, 30))["image"] is batch["image"]


def test_rebuilt_network_needs_neither_data_nor_starting_weights_nor_a_teacher(data, tmp_path):
    config = ClassificationConfig(
        NetworkConfig(MODEL.name, options=TINY, weights=str(tmp_path / "gone.pth")),
        DataConfig(source="folder", root="/nowhere", channels=1, mean=(0.5,), std=(0.5,)),
        UNMIXED,
        distillation=DistillationConfig(logits="/nowhere"),
    )
    task = Classification(config, {"labels": CLASSES})
    task.build_network().load_state_dict(make_task(data).build_network().state_dict())
    assert task.teacher is None


def test_training_starts_with_the_named_weights(data, tmp_path):
    before = make_task(data).build_network(training=True)
    save_file(before.state_dict(), tmp_path / "start.safetensors")
    model = NetworkConfig(MODEL.name, options=TINY, weights=str(tmp_path / "start.safetensors"))
    task = make_task(data, model=model)
    network = task.build_network(training=True)
    assert all(torch.equal(value, before.state_dict()[name]) for name, value in network.state_dict().items())
    assert task.original is None


def test_training_loader_shuffles_and_augments(data):
    task = make_task(data)
    loader = task.loader("train", batch_size=5, seed=0)
    [first, second] = list(loader)
    assert first["image"].shape == (5, 1, 32, 32)
    indices = torch.cat([first["index"], second["index"]]).tolist()
    assert len(set(indices)) == 10
    assert indices != sorted(indices)
    assert first["target"].tolist() == [index // 4 for index in first["index"].tolist()]
    plain = torch.cat([batch["image"] for batch in task.loader("train", batch_size=5)])
    assert not torch.equal(first["image"], plain[first["index"]])


def test_training_loader_without_a_seed_evaluates(data):
    batches = list(make_task(data).loader("train", batch_size=5))
    assert [batch["index"].tolist() for batch in batches] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]


def test_validation_loader_is_in_order_and_complete(data):
    batches = list(make_task(data).loader("val", batch_size=4))
    assert [batch["target"].tolist() for batch in batches] == [[0, 0, 1, 1], [2, 2]]


def test_loader_splits_batches_over_processes_and_parts(data):
    task = make_task(data)
    whole = list(task.loader("train", batch_size=12, seed=0))
    loaders = [task.loader("train", batch_size=12, seed=0, shard=Shard(rank, 2), parts=3) for rank in (0, 1)]
    parts = [list(loader) for loader in loaders]
    assert [len(found) for found in parts] == [3, 3]
    images = torch.cat([part["image"] for found in parts for part in found])
    assert torch.equal(images, whole[0]["image"])


def test_repeated_pictures_are_augmented_differently(data):
    task = make_task(data, augment=AugmentConfig(mixup=0.0, cutmix=0.0, repeats=2))
    [batch] = task.loader("train", batch_size=12, seed=0)
    first, second = batch["index"].reshape(6, 2).t()
    assert torch.equal(first, second)
    images = batch["image"].reshape(6, 2, -1)
    assert (images[:, 0] != images[:, 1]).any(-1).all()


def test_loss_is_that_of_the_smoothed_labels(data):
    task = make_task(data, smoothing=0.3)
    network = Constant()
    batch = next(iter(task.loader("train", batch_size=5, seed=0)))  # not as many of each class
    found = task.losses(network, batch)
    assert found.parts == {}
    assert torch.equal(found.total, label_loss(network.logits.expand(5, -1), batch["target"], 0.3))
    assert torch.equal(network.seen[0], batch["image"])


def test_mixup_mixes_pictures_and_targets(data):
    task = make_task(data, augment=AugmentConfig(mixup=0.8, cutmix=0.0), smoothing=0.0)
    # Pictures of one pixel that are one-hot codes of their class: a mixed one is its mixed target.
    batch = {"target": torch.tensor([0, 1, 2, 0]), "index": torch.arange(4)}
    batch["image"] = (
        batch["target"][:, None, None, None].eq(torch.arange(3)).float().permute(0, 3, 1, 2)
    )  # (4, 3, 1, 1)
    network, seen = nn.Flatten(), []
    network.register_forward_hook(lambda module, args, output: seen.append(output))
    with seeded(0):
        found = task.losses(network, {name: value.clone() for name, value in batch.items()})
    mixed = seen[0]
    assert not torch.equal(mixed, batch["image"].flatten(1))
    assert torch.allclose(mixed.sum(-1), torch.ones(4))
    assert found.total.item() == pytest.approx(-(mixed * mixed.log_softmax(-1)).sum(-1).mean().item(), rel=1e-4)


@pytest.mark.parametrize(("batch_size", "num_shards", "parts"), [(5, 1, 1), (6, 2, 1), (6, 1, 2), (12, 2, 2)], ids=str)
@pytest.mark.parametrize("mixing", [{"mixup": 0.0}, {"cutmix": 0.0}], ids=str)
def test_odd_parts_cannot_be_mixed(data, batch_size, num_shards, parts, mixing):
    task = make_task(data, augment=AugmentConfig(**mixing))
    shard = Shard(0, num_shards)
    with pytest.raises(ValueError, match=f"mixup pairs pictures, but .*batch_size {batch_size} are odd"):
        task.loader("train", batch_size=batch_size, seed=0, shard=shard, parts=parts)
    task.loader("val", batch_size=batch_size, shard=shard)
    make_task(data).loader("train", batch_size=batch_size, seed=0, shard=shard, parts=parts)


@pytest.mark.parametrize("smoothing", [-0.1, 1.0])
def test_smoothing_is_checked(smoothing):
    with pytest.raises(ValueError, match=rf"smoothing must lie in \[0, 1\); got {smoothing}"):
        ClassificationConfig(MODEL, smoothing=smoothing)


def test_evaluation_counts_every_readable_picture_once(data, tmp_path):
    (tmp_path / "pictures/val/emu/0.png").write_text("no picture")
    task = make_task(data)
    network = Constant()  # which always says emu
    for batch_size in (1, 4):
        found = evaluate(task, network, task.loader("val", batch_size=batch_size))
        assert found["top1"] == pytest.approx(1 / 5)
        assert found["top5"] == 1.0
        log_probabilities = network.logits.log_softmax(-1)
        assert found["loss"] == pytest.approx(-log_probabilities[[0, 0, 1, 1, 2]].mean().item(), rel=1e-5)


def test_evaluation_on_two_processes_adds_up(data):
    task = make_task(data)
    network = task.build_network().eval()
    whole = evaluate(task, network, task.loader("val", batch_size=4))
    loaders = [task.loader("val", batch_size=4, shard=Shard(rank, 2)) for rank in (0, 1)]
    assert [sum(len(batch["index"]) for batch in loader) for loader in loaders] == [3, 3]
    assert evaluate(task, network, *loaders) == pytest.approx(whole, rel=1e-5)


def test_meter_counts_classes_and_agreement_is_the_same_choice(data):
    task = make_task(data)
    assert isinstance(task.meter(), Accuracy)
    assert task.agreement(torch.eye(3), torch.eye(3)[[0, 2, 1]], {}).tolist() == [1.0, 0.0, 0.0]


def test_predictor_sees_pictures_as_evaluation_does(data, tmp_path):
    task = make_task(data)
    network = task.build_network().eval()
    [batch] = task.loader("val", batch_size=6)
    found = task.predictor(network, LabelOptions(top=2))(tmp_path / "pictures/val")
    probabilities, classes = network(batch["image"]).softmax(-1).topk(2)
    assert [one.labels for one in found] == [[CLASSES[index] for index in row] for row in classes.tolist()]
    for one, wanted in zip(found, probabilities.tolist(), strict=True):
        assert one.probabilities == pytest.approx(wanted, abs=1e-5)
    assert len(task.predictor(network)(tmp_path / "pictures/val/cat/0.png")[0].labels) == 3


def test_deployment_has_what_gives_logits_a_meaning(data):
    found = make_task(data).deployment()
    assert found.example.shape == (1, 1, 32, 32)
    assert found.preprocessing == data.preprocessing()
    assert (found.outputs, found.facts) == (None, {"labels": CLASSES})
