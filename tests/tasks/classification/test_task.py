from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from castling.tasks import TASKS
from castling.tasks.batches import Shard, seeded
from castling.tasks.classification.data import AugmentConfig, DataConfig
from castling.tasks.classification.distillation import DistillationConfig, LogitsTeacher, write_logits
from castling.tasks.classification.losses import label_loss, total_loss
from castling.tasks.classification.model import ModelConfig
from castling.tasks.classification.task import Classification, ClassificationConfig

TINY = {"img_size": 32, "patch_size": 4, "embed_dim": 32, "depth": 1, "num_heads": 2}
MODEL = ModelConfig("castling_deit_tiny_patch16_224", options=TINY)
UNMIXED = AugmentConfig(mixup=0.0, cutmix=0.0)
CLASSES = ["cat", "dog", "emu"]


@pytest.fixture
def data(tmp_path):
    """A folder of twelve training and six validation pictures of three classes."""
    noise = np.random.default_rng(0)
    for split, count in (("train", 4), ("val", 2)):
        for label in CLASSES:
            (tmp_path / "pictures" / split / label).mkdir(parents=True)
            for number in range(count):
                pixels = noise.integers(0, 256, (32, 32), np.uint8)
                Image.fromarray(pixels).save(tmp_path / "pictures" / split / label / f"{number}.png")
    return DataConfig("folder", str(tmp_path / "pictures"), image_size=32, channels=1, mean=(0.5,), std=(0.5,))


@pytest.fixture
def names():
    return [f"train/{label}/{number}.png" for label in CLASSES for number in range(4)]


@pytest.fixture
def logits_folder(tmp_path, names):
    """Logits of a teacher whose choice is class 2, 1, 0, 2, 1, ... whatever the labels."""
    write_logits(tmp_path / "logits", 5 * torch.eye(3)[[2, 1, 0]].repeat(4, 1), names)
    return str(tmp_path / "logits")


def make_task(data, **settings):
    return Classification(ClassificationConfig(**{"model": MODEL, "data": data, "augment": UNMIXED, **settings}))


class Constant(nn.Module):
    """A network that keeps what it saw and gives the same logits for every picture."""

    def __init__(self, classes=3):
        super().__init__()
        self.logits, self.seen = nn.Parameter(torch.arange(float(classes)) ** 2), []

    def forward(self, x):
        self.seen.append(x)
        return self.logits.repeat(len(x), 1)


def test_task_is_registered():
    assert TASKS["classification"] is Classification


def test_labels_and_counts_come_from_the_data(data):
    task = make_task(data)
    assert task.labels == CLASSES
    assert (task.num_examples("train"), task.num_examples("val")) == (12, 6)
    assert task.keepsakes() == {"labels.json": CLASSES}
    assert task.example().shape == (1, 1, 32, 32)
    assert task.build_model()(task.example()).shape == (1, 3)


def test_rebuilt_model_needs_neither_data_nor_starting_weights(data, tmp_path):
    config = ClassificationConfig(
        ModelConfig(MODEL.name, options=TINY, weights=str(tmp_path / "gone.pth")),
        DataConfig("folder", "/nowhere", channels=1, mean=(0.5,), std=(0.5,)),
    )
    model = Classification.rebuild(config, CLASSES)
    model.load_state_dict(make_task(data).build_model().state_dict())


def test_training_loader_shuffles_and_augments(data):
    task = make_task(data)
    loader = task.build_loader("train", batch_size=5, seed=0)
    [first, second] = list(loader)
    assert first["image"].shape == (5, 1, 32, 32)
    indices = torch.cat([first["index"], second["index"]]).tolist()
    assert len(set(indices)) == 10
    assert indices != sorted(indices)
    assert first["target"].tolist() == [index // 4 for index in first["index"].tolist()]
    plain = torch.cat([batch["image"] for batch in task.build_loader("train", batch_size=5)])
    assert not torch.equal(first["image"], plain[first["index"]])


def test_training_loader_without_a_seed_evaluates(data):
    batches = list(make_task(data).build_loader("train", batch_size=5))
    assert [batch["index"].tolist() for batch in batches] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]


def test_validation_loader_is_in_order_and_complete(data):
    batches = list(make_task(data).build_loader("val", batch_size=4))
    assert [batch["target"].tolist() for batch in batches] == [[0, 0, 1, 1], [2, 2]]


def test_loader_splits_batches_over_processes_and_parts(data):
    task = make_task(data)
    whole = list(task.build_loader("train", batch_size=12, seed=0))
    loaders = [task.build_loader("train", batch_size=12, seed=0, shard=Shard(rank, 2), parts=3) for rank in (0, 1)]
    parts = [list(loader) for loader in loaders]
    assert [len(found) for found in parts] == [3, 3]
    images = torch.cat([part["image"] for found in parts for part in found])
    assert torch.equal(images, whole[0]["image"])


def test_repeated_pictures_are_augmented_differently(data):
    task = make_task(data, augment=AugmentConfig(mixup=0.0, cutmix=0.0, repeats=2))
    [batch] = task.build_loader("train", batch_size=12, seed=0)
    first, second = batch["index"].reshape(6, 2).t()
    assert torch.equal(first, second)
    images = batch["image"].reshape(6, 2, -1)
    assert (images[:, 0] != images[:, 1]).any(-1).all()


def test_loss_is_that_of_the_smoothed_labels(data):
    task = make_task(data, smoothing=0.3)
    model = Constant()
    batch = next(iter(task.build_loader("train", batch_size=5, seed=0)))  # not as many of each class
    found = task.losses(model, batch)
    assert list(found) == ["loss"]
    assert torch.equal(found["loss"], label_loss(model.logits.expand(5, -1), batch["target"], 0.3))
    assert torch.equal(model.seen[0], batch["image"])


def test_mixup_mixes_pictures_and_targets(data):
    task = make_task(data, augment=AugmentConfig(mixup=0.8, cutmix=0.0), smoothing=0.0)
    # Pictures of one pixel that are one-hot codes of their class: a mixed one is its mixed target.
    batch = {"target": torch.tensor([0, 1, 2, 0]), "index": torch.arange(4)}
    batch["image"] = (
        batch["target"][:, None, None, None].eq(torch.arange(3)).float().permute(0, 3, 1, 2)
    )  # (4, 3, 1, 1)
    model, seen = nn.Flatten(), []
    model.register_forward_hook(lambda module, args, output: seen.append(output))
    with seeded(0):
        found = task.losses(model, {name: value.clone() for name, value in batch.items()})
    mixed = seen[0]
    assert not torch.equal(mixed, batch["image"].flatten(1))
    assert torch.allclose(mixed.sum(-1), torch.ones(4))
    assert found["loss"].item() == pytest.approx(-(mixed * mixed.log_softmax(-1)).sum(-1).mean().item(), rel=1e-4)


@pytest.mark.parametrize(("batch_size", "num_shards", "parts"), [(5, 1, 1), (6, 2, 1), (6, 1, 2), (12, 2, 2)], ids=str)
@pytest.mark.parametrize("mixing", [{"mixup": 0.0}, {"cutmix": 0.0}], ids=str)
def test_odd_parts_cannot_be_mixed(data, batch_size, num_shards, parts, mixing):
    task = make_task(data, augment=AugmentConfig(**mixing))
    shard = Shard(0, num_shards)
    with pytest.raises(ValueError, match=f"mixup pairs pictures, but .*batch_size {batch_size} are odd"):
        task.build_loader("train", batch_size=batch_size, seed=0, shard=shard, parts=parts)
    task.build_loader("val", batch_size=batch_size, shard=shard)
    make_task(data).build_loader("train", batch_size=batch_size, seed=0, shard=shard, parts=parts)


@pytest.mark.parametrize("mixing", [{"mixup": 0.0}, {"cutmix": 0.0}], ids=str)
def test_precomputed_logits_and_mixed_pictures_are_refused(mixing):
    teacher = DistillationConfig(logits="x")
    with pytest.raises(ValueError, match=r"precomputed logits know no mixed pictures: set augment\.mixup=0"):
        ClassificationConfig(MODEL, augment=AugmentConfig(**mixing), distillation=teacher)
    ClassificationConfig(MODEL, augment=AugmentConfig(**mixing), distillation=DistillationConfig(model="test_vit"))


@pytest.mark.parametrize("smoothing", [-0.1, 1.0])
def test_smoothing_is_checked(smoothing):
    with pytest.raises(ValueError, match=rf"smoothing must lie in \[0, 1\); got {smoothing}"):
        ClassificationConfig(MODEL, smoothing=smoothing)


def test_losses_follow_the_teacher_of_each_picture(data, logits_folder):
    how = DistillationConfig(logits=logits_folder, alpha=0.7)
    task, model = make_task(data, distillation=how, smoothing=0.0), Constant()
    [batch] = task.build_loader("train", batch_size=12, seed=0)
    found = task.losses(model, batch)
    teacher_logits = 5 * torch.eye(3)[2 - batch["index"] % 3]
    expected = total_loss(model.logits.expand(12, -1), batch["target"], 0.0, teacher_logits, how)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].item() == pytest.approx(value.item(), rel=1e-5)


def test_replacement_of_an_unreadable_picture_goes_with_its_own_teacher(data, logits_folder, tmp_path):
    (tmp_path / "pictures/train/cat/0.png").write_text("no picture")
    task = make_task(data, distillation=DistillationConfig(logits=logits_folder))
    [batch] = task.build_loader("train", batch_size=12, seed=0)
    place = batch["index"].tolist().index(1)
    assert batch["index"].tolist().count(1) == 2
    assert batch["unreadable"][0][0] == "train/cat/0.png"
    assert task.teacher(batch["image"], batch["index"])[place].argmax() == 1


def test_teacher_sees_the_mixed_pictures(data):
    task, model = make_task(data, augment=AugmentConfig()), Constant()
    seen = []
    task.teacher = lambda images, indices: seen.append(images) or torch.zeros(len(images), 3)
    [batch] = task.build_loader("val", batch_size=6)
    before = batch["image"].clone()
    with seeded(0):
        task.losses(model, batch)
    assert torch.equal(seen[0], model.seen[0])
    assert not torch.equal(seen[0], before)


def test_teacher_that_does_not_fit_is_refused_with_the_loader(data, logits_folder, names):
    write_logits(Path(logits_folder), torch.zeros(11, 3), names[1:])
    task = make_task(data, distillation=DistillationConfig(logits=logits_folder))
    with pytest.raises(ValueError, match=r"no logits for 1 training pictures, such as 'train/cat/0\.png'"):
        task.build_loader("train", batch_size=4, seed=0)


def test_distilled_model_returns_both_heads_where_there_is_a_teacher(data, logits_folder):
    model = ModelConfig(MODEL.name, options={**TINY, "distilled": True})
    without = make_task(data, model=model).build_model()
    task = make_task(data, model=model, distillation=DistillationConfig(logits=logits_folder))
    with_teacher = task.build_model()
    image = torch.randn(2, 1, 32, 32)
    assert isinstance(without.train()(image), torch.Tensor)
    heads = with_teacher.train()(image)
    assert [head.shape for head in heads] == [(2, 3), (2, 3)]
    assert torch.allclose(with_teacher.eval()(image), (heads[0] + heads[1]) / 2, atol=1e-5)
    [batch] = task.build_loader("train", batch_size=12, seed=0)
    task.losses(with_teacher.train(), batch)["loss"].backward()
    assert with_teacher.head.weight.grad.abs().sum() > 0
    assert with_teacher.head_dist.weight.grad.abs().sum() > 0


def test_plain_model_can_have_a_teacher(data, logits_folder):
    task = make_task(data, distillation=DistillationConfig(logits=logits_folder))
    assert isinstance(task.build_model().train()(task.example()), torch.Tensor)


def test_evaluation_counts_every_readable_picture_once(data, tmp_path):
    (tmp_path / "pictures/val/emu/0.png").write_text("no picture")
    task = make_task(data)
    model = Constant()  # which always says emu
    for batch_size in (1, 4):
        found = task.evaluate(model, task.build_loader("val", batch_size=batch_size))
        assert found["top1"] == pytest.approx(1 / 5)
        assert found["top5"] == 1.0
        log_probabilities = model.logits.log_softmax(-1)
        assert found["loss"] == pytest.approx(-log_probabilities[[0, 0, 1, 1, 2]].mean().item(), rel=1e-5)


def test_evaluation_on_two_processes_adds_up(data):
    task = make_task(data)
    model = task.build_model().eval()
    whole = task.evaluate(model, task.build_loader("val", batch_size=4))
    loaders = [task.build_loader("val", batch_size=4, shard=Shard(rank, 2)) for rank in (0, 1)]
    sums = []
    task.evaluate(model, loaders[0], lambda own: sums.append(own) or own)
    found = task.evaluate(model, loaders[1], lambda own: sums.append(own) or sums[0] + sums[1])
    assert found == pytest.approx(whole, rel=1e-5)
    assert [one[-1].item() for one in sums] == [3, 3]  # pictures that each has seen


@pytest.mark.parametrize("batch_size", [1, 5])
def test_logits_of_all_pictures_with_their_names(data, tmp_path, names, batch_size):
    (tmp_path / "pictures/train/cat/2.png").write_text("no picture")
    task = make_task(data)
    model = task.build_model().eval()
    logits, found = task.logits(model, task.build_loader("train", batch_size=batch_size))
    assert found == names
    assert not logits.requires_grad
    assert logits[2].isnan().all()
    everything = torch.cat([batch["image"] for batch in task.build_loader("train", batch_size=12)])
    readable = [index for index in range(12) if index != 2]
    assert torch.allclose(logits[readable], model(everything)[readable], atol=1e-5)


def test_logits_of_the_validation_split_have_its_names(data):
    task = make_task(data)
    _, found = task.logits(task.build_model().eval(), task.build_loader("val", batch_size=6), "val")
    assert found == [f"val/{label}/{number}.png" for label in CLASSES for number in range(2)]


def test_logits_of_one_model_teach_another(data, tmp_path):
    task = make_task(data)
    logits, found = task.logits(task.build_model().eval(), task.build_loader("train", batch_size=5))
    write_logits(tmp_path / "taught", logits, found)
    student = make_task(data, distillation=DistillationConfig(logits=str(tmp_path / "taught")))
    student.build_loader("train", batch_size=4, seed=0)
    assert isinstance(student.teacher, LogitsTeacher)
    assert torch.equal(student.teacher.logits, logits)


def test_logits_of_a_folder_with_an_unreadable_picture_teach(data, tmp_path):
    (tmp_path / "pictures/train/cat/2.png").write_text("no picture")
    task = make_task(data)
    write_logits(tmp_path / "taught", *task.logits(Constant(), task.build_loader("train", batch_size=5)))
    how = DistillationConfig("soft", logits=str(tmp_path / "taught"))
    student = make_task(data, distillation=how)
    [batch] = student.build_loader("train", batch_size=12, seed=0)
    assert student.losses(Constant(), batch)["teacher_loss"].item() == pytest.approx(0, abs=1e-6)
