from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from castling.tasks import TASKS, Task, find_task
from castling.tasks.classification.data import DataConfig
from castling.tasks.classification.task import Classification, ClassificationConfig
from castling.tasks.detection.task import Detection
from castling.tasks.embedding.task import Embedding
from castling.tasks.networks import NetworkConfig
from castling.tasks.preparation import PictureConfig
from castling.tasks.pretraining.task import Pretraining
from castling.tasks.segmentation.task import Segmentation


@dataclass(frozen=True)
class ShadeData(PictureConfig):
    root: str | None = None


@dataclass(frozen=True)
class ShadeConfig:
    model: NetworkConfig = NetworkConfig("test_resnet")  # noqa: RUF009 - frozen
    data: ShadeData = ShadeData(root="/pictures")


class Shade(Task):
    """A task with nothing but what it must have; its facts are where they were read."""

    Config = ShadeConfig

    def read_facts(self):
        return {"read in": self.config.data.root}

    def build_network(self, training=False):
        return nn.Identity()

    def loader(self, *args, **options):
        raise AssertionError("nobody asks for this here")

    losses = meter = agreement = predictor = deployment = loader


def test_tasks_are_found_by_name_or_by_their_class():
    assert {name: find_task(name) for name in TASKS} == {
        "classification": Classification,
        "detection": Detection,
        "embedding": Embedding,
        "pretraining": Pretraining,
        "segmentation": Segmentation,
    }
    assert find_task(f"{__name__}:Shade") is Shade


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("clasification", "unknown task 'clasification': did you mean 'classification'"),
        (None, r"unknown task None.*'classification', 'detection', 'embedding'"),
        ("castling.nowhere:Task", "there is no task 'castling.nowhere:Task'"),
        ("castling.tasks:Nothing", "there is no task 'castling.tasks:Nothing'"),
        ("castling.config:AttentionConfig", "'castling.config:AttentionConfig' is no castling.tasks.Task"),
        ("castling.tasks:find_task", "'castling.tasks:find_task' is no castling.tasks.Task"),
    ],
)
def test_task_that_is_none_is_refused(name, message):
    with pytest.raises(ValueError, match=message):
        find_task(name)


def test_facts_are_read_once_and_only_where_none_are_given(monkeypatch):
    task = Shade(ShadeConfig())
    facts = task.facts
    assert facts == {"read in": "/pictures"}
    monkeypatch.setattr(Shade, "read_facts", None)
    assert task.facts is facts
    assert Shade(ShadeConfig(), {"kept": 1}).facts == {"kept": 1}


def test_task_elsewhere_differs_in_the_place_or_the_size_of_its_pictures_alone():
    task = Shade(ShadeConfig(), {"kept": 1})
    moved = task.elsewhere(root="/others")
    assert moved.config == replace(task.config, data=replace(task.config.data, root="/others"))
    larger = task.elsewhere(image_size=512)
    assert larger.config == replace(task.config, data=replace(task.config.data, image_size=512))
    assert task.elsewhere("/others", 512).config.data == replace(task.config.data, root="/others", image_size=512)
    assert task.elsewhere().config == task.config == ShadeConfig()
    assert {type(one) for one in (moved, larger)} == {Shade}
    assert moved.facts == larger.facts == {"kept": 1}


def test_task_elsewhere_reads_facts_there_where_it_knew_none():
    assert Shade(ShadeConfig()).elsewhere("/others").facts == {"read in": "/others"}


def test_task_whose_pictures_are_in_no_folder_cannot_be_elsewhere():
    task = Classification(ClassificationConfig(NetworkConfig("test_vit"), DataConfig(source="digits")))
    with pytest.raises(ValueError, match="the pictures of this run are not read from a folder; got '/others'"):
        task.elsewhere("/others")
    assert task.elsewhere(image_size=64).config.data.image_size == 64


def test_outputs_are_those_of_the_image():
    batch = {"image": torch.ones(2, 3, 4, 4), "index": torch.arange(2)}
    assert torch.equal(Shade(ShadeConfig()).forward(lambda images: 2 * images, batch), 2 * batch["image"])


def test_task_that_knows_no_better_follows_no_original_and_writes_no_answers(tmp_path):
    assert Shade.following_original(ShadeConfig()) == ShadeConfig()
    task = Shade(ShadeConfig())
    with pytest.raises(ValueError, match="students of the task Shade learn from no written answers"):
        task.write_answers(nn.Identity(), [], tmp_path)
    assert list(tmp_path.iterdir()) == []
