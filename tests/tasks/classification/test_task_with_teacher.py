from pathlib import Path

import pytest
import torch
from small_task import MODEL, TINY, UNMIXED, Constant, make_task
from torch import nn

from castling import set_blend
from castling.tasks.batches import seeded
from castling.tasks.classification.data import AugmentConfig
from castling.tasks.classification.distillation import DistillationConfig, LogitsTeacher, read_logits, write_logits
from castling.tasks.classification.losses import total_loss
from castling.tasks.classification.task import Classification, ClassificationConfig
from castling.tasks.networks import ConvertConfig, NetworkConfig

PLAIN = NetworkConfig("vit_tiny_patch16_224", options=TINY, convert=ConvertConfig(calibrate=1))


@pytest.mark.parametrize("mixing", [{"mixup": 0.0}, {"cutmix": 0.0}], ids=str)
def test_precomputed_logits_and_mixed_pictures_are_refused(mixing):
    teacher = DistillationConfig(logits="x")
    with pytest.raises(ValueError, match=r"precomputed logits know no mixed pictures: set augment\.mixup=0"):
        ClassificationConfig(MODEL, augment=AugmentConfig(**mixing), distillation=teacher)
    ClassificationConfig(MODEL, augment=AugmentConfig(**mixing), distillation=DistillationConfig(model="test_vit"))


def test_losses_follow_the_teacher_of_each_picture(data, logits_folder):
    how = DistillationConfig(logits=logits_folder, alpha=0.7)
    task, network = make_task(data, distillation=how, smoothing=0.0), Constant()
    task.build_network(training=True)
    [batch] = task.loader("train", batch_size=12, seed=0)
    found = task.losses(network, batch)
    teacher_logits = 5 * torch.eye(3)[2 - batch["index"] % 3]
    expected = total_loss(network.logits.expand(12, -1), batch["target"], 0.0, teacher_logits, how)
    assert found.total.item() == pytest.approx(expected.total.item(), rel=1e-5)
    assert found.parts.keys() == expected.parts.keys() == {"label_loss", "teacher_loss"}
    for name, value in expected.parts.items():
        assert found.parts[name].item() == pytest.approx(value.item(), rel=1e-5)


def test_replacement_of_an_unreadable_picture_goes_with_its_own_teacher(data, logits_folder, tmp_path):
    (tmp_path / "pictures/train/cat/0.png").write_text("no picture")
    task = make_task(data, distillation=DistillationConfig(logits=logits_folder))
    task.build_network(training=True)
    loader, unreadable = task.loader("train", batch_size=12, seed=0), []
    loader.on_unreadable = unreadable.extend
    [batch] = loader
    place = batch["index"].tolist().index(1)
    assert batch["index"].tolist().count(1) == 2
    assert [name for name, _ in unreadable] == ["train/cat/0.png"]
    assert task.teacher(batch["image"], batch["index"])[place].argmax() == 1


def test_teacher_sees_the_mixed_pictures(data):
    task, network = make_task(data, augment=AugmentConfig()), Constant()
    seen = []
    task.teacher = lambda images, indices: seen.append(images) or torch.zeros(len(images), 3)
    [batch] = task.loader("val", batch_size=6)
    before = batch["image"].clone()
    with seeded(0):
        task.losses(network, batch)
    assert torch.equal(seen[0], network.seen[0])
    assert not torch.equal(seen[0], before)


def test_teacher_that_does_not_fit_is_refused_with_the_network(data, logits_folder, names):
    write_logits(Path(logits_folder), torch.zeros(11, 3), names[1:])
    task = make_task(data, distillation=DistillationConfig(logits=logits_folder))
    with pytest.raises(ValueError, match=r"no logits for 1 training pictures, such as 'train/cat/0\.png'"):
        task.build_network(training=True)


def test_distilled_network_returns_both_heads_where_there_is_a_teacher(data, logits_folder):
    model = NetworkConfig(MODEL.name, options={**TINY, "distilled": True})
    how = DistillationConfig(logits=logits_folder)
    task = make_task(data, model=model, distillation=how)
    image = torch.randn(2, 1, 32, 32)
    for without in (make_task(data, model=model).build_network(training=True), task.build_network()):
        assert isinstance(without.train()(image), torch.Tensor)
    with_teacher = task.build_network(training=True)
    heads = with_teacher.train()(image)
    assert [head.shape for head in heads] == [(2, 3), (2, 3)]
    assert torch.allclose(with_teacher.eval()(image), (heads[0] + heads[1]) / 2, atol=1e-5)
    [batch] = task.loader("train", batch_size=12, seed=0)
    task.losses(with_teacher.train(), batch).total.backward()
    assert with_teacher.head.weight.grad.abs().sum() > 0
    assert with_teacher.head_dist.weight.grad.abs().sum() > 0


def test_plain_network_can_have_a_teacher(data, logits_folder):
    task = make_task(data, distillation=DistillationConfig(logits=logits_folder))
    assert isinstance(task.build_network(training=True).train()(data.example()), torch.Tensor)


def test_converted_network_follows_what_it_was(data):
    config = Classification.following_original(ClassificationConfig(PLAIN, data, UNMIXED, smoothing=0.0))
    assert config.distillation == DistillationConfig(kind="soft", model="self", alpha=0.5)
    task = Classification(config)
    network = task.build_network(training=True).eval()
    [batch] = task.loader("train", batch_size=12, seed=0)
    found = task.losses(network, batch)
    assert found.parts["teacher_loss"].item() == pytest.approx(0, abs=1e-6)
    assert found.total.item() == pytest.approx(0.5 * found.parts["label_loss"].item(), rel=1e-5)
    nn.init.normal_(network.head.weight)
    set_blend(network, 1.0)
    moved = task.losses(network, batch)
    assert moved.parts["teacher_loss"] > 1e-3
    assert torch.equal(task.teacher(batch["image"], batch["index"]), task.original(batch["image"]))
    moved.total.backward()
    assert all(parameter.grad is None for parameter in task.original.parameters())


def test_network_that_is_not_converted_has_no_original_to_follow():
    with pytest.raises(ValueError, match=r"only a converted network has an original to learn from: set model\.convert"):
        ClassificationConfig(MODEL, distillation=DistillationConfig(model="self"))


@pytest.mark.parametrize("batch_size", [1, 5])
def test_answers_are_logits_of_all_pictures_with_their_names(data, tmp_path, names, batch_size):
    (tmp_path / "pictures/train/cat/2.png").write_text("no picture")
    task = make_task(data)
    network = task.build_network().eval()
    assert task.write_answers(network, task.loader("train", batch_size=batch_size), tmp_path / "taught") == 12
    logits, found = read_logits(tmp_path / "taught")
    assert found == names
    assert logits[2].isnan().all()
    [everything] = task.loader("train", batch_size=12)
    assert everything["index"].tolist() == [index for index in range(12) if index != 2]
    assert torch.allclose(logits[everything["index"]], network(everything["image"]), atol=1e-5)


def test_answers_of_one_network_teach_another(data, tmp_path):
    task = make_task(data)
    task.write_answers(task.build_network().eval(), task.loader("train", batch_size=5), tmp_path / "taught")
    student = make_task(data, distillation=DistillationConfig(logits=str(tmp_path / "taught")))
    student.build_network(training=True)
    assert isinstance(student.teacher, LogitsTeacher)
    assert torch.equal(student.teacher.logits, read_logits(tmp_path / "taught")[0])


def test_answers_of_a_folder_with_an_unreadable_picture_teach(data, tmp_path):
    (tmp_path / "pictures/train/cat/2.png").write_text("no picture")
    task = make_task(data)
    task.write_answers(Constant(), task.loader("train", batch_size=5), tmp_path / "taught")
    how = DistillationConfig("soft", logits=str(tmp_path / "taught"))
    student = make_task(data, distillation=how)
    student.build_network(training=True)
    [batch] = student.loader("train", batch_size=12, seed=0)
    assert student.losses(Constant(), batch).parts["teacher_loss"].item() == pytest.approx(0, abs=1e-6)
