import json

import pytest
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from castling.tasks.classification import distillation
from castling.tasks.classification.distillation import (
    DistillationConfig,
    LogitsTeacher,
    ModelTeacher,
    make_teacher,
    read_logits,
    write_logits,
)

MEAN, STD = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
NAMES = ["train/0", "train/1", "train/2"]


class Recorder(nn.Module):
    """Keeps what it was shown; its logits are the channels' means, dropped out in training."""

    def __init__(self, **wants):
        super().__init__()
        self.pretrained_cfg = wants
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x):
        self.seen = x
        return F.dropout(x.mean((2, 3)) * self.weight, 0.5, self.training)


@pytest.fixture
def logits():
    return torch.randn(3, 4)


@pytest.fixture
def pixels():
    return torch.rand(2, 3, 6, 6)  # from 0 to 1, as a picture before any normalisation


@pytest.fixture
def student_images(pixels):
    return normalised(pixels, MEAN, STD)


def normalised(pixels, mean, std):
    return (pixels - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either a model or a folder of logits"),
        ({"model": "test_vit", "logits": "x"}, "either a model or a folder of logits"),
        ({"model": "test_vitt"}, "timm knows no teacher 'test_vitt'"),
        ({"logits": "x", "alpha": 1.5}, "alpha is a share from 0 to 1; got 1.5"),
        ({"logits": "x", "alpha": -0.5}, "alpha is a share from 0 to 1; got -0.5"),
        ({"logits": "x", "temperature": 0.0}, "temperature must be above 0; got 0"),
    ],
)
def test_settings_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        DistillationConfig(**options)


def test_logits_are_read_as_they_were_written(tmp_path, logits):
    write_logits(tmp_path / "new" / "folder", logits.t().contiguous().t(), ["train/ä", "train/1", "b/c.png"])
    read, names = read_logits(tmp_path / "new" / "folder")
    assert torch.equal(read, logits)
    assert names == ["train/ä", "train/1", "b/c.png"]


def test_logits_are_matched_by_name(tmp_path, logits):
    write_logits(tmp_path, logits, ["train/2", "train/0", "train/1"])
    teacher = LogitsTeacher(tmp_path, NAMES, 4)
    images, indices = torch.zeros(4, 1, 2, 2), torch.tensor([0, 2, 1, 0])
    assert torch.equal(teacher(images, indices), logits[[1, 0, 2, 1]])


def test_logits_of_more_pictures_than_needed_are_fine(tmp_path, logits):
    write_logits(tmp_path, logits, NAMES)
    assert torch.equal(LogitsTeacher(tmp_path, ["train/2"], 4).logits, logits[2:])


def test_logits_must_be_there_for_every_picture(tmp_path, logits):
    write_logits(tmp_path, logits, NAMES)
    with pytest.raises(ValueError, match=r"no logits for 2 training pictures, such as 'train/8'"):
        LogitsTeacher(tmp_path, ["train/1", "train/8", "train/9"], 4)


def test_logits_must_be_of_the_same_classes(tmp_path, logits):
    write_logits(tmp_path, logits, NAMES)
    with pytest.raises(ValueError, match="are of 4 classes, the data of 10"):
        LogitsTeacher(tmp_path, NAMES, 10)


def test_folder_without_logits_says_what_was_expected(tmp_path, logits):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ValueError, match=rf"{folder} holds no logits: expected logits.safetensors and names.json"):
            read_logits(folder)
    write_logits(tmp_path, logits, NAMES)
    (tmp_path / "names.json").unlink()
    with pytest.raises(ValueError, match="holds no logits"):
        read_logits(tmp_path)


def test_logits_and_names_must_belong_together(tmp_path, logits):
    write_logits(tmp_path, logits, NAMES)
    (tmp_path / "names.json").write_text(json.dumps(NAMES[:2]))
    with pytest.raises(ValueError, match="has 3 logits for 2 names"):
        read_logits(tmp_path)


@pytest.mark.parametrize("damage", ["logits", "tensor", "names"])
def test_damaged_logits_are_named(tmp_path, logits, damage):
    write_logits(tmp_path, logits, NAMES)
    if damage == "logits":
        (tmp_path / "logits.safetensors").write_bytes((tmp_path / "logits.safetensors").read_bytes()[:-4])
    elif damage == "tensor":
        save_file({"scores": logits}, tmp_path / "logits.safetensors")
    else:
        (tmp_path / "names.json").write_text('["train/0", ')
    with pytest.raises(ValueError, match=tmp_path.name):
        read_logits(tmp_path)


def test_teacher_sees_pictures_in_its_own_normalisation(pixels, student_images):
    own = {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.3, 0.4)}
    model = Recorder(**own)
    logits = ModelTeacher(model, MEAN, STD)(student_images, torch.arange(2))
    assert torch.allclose(model.seen, normalised(pixels, **own), atol=1e-5)
    assert torch.equal(logits, model.seen.mean((2, 3)))


def test_teacher_of_colours_sees_grey_pictures_in_its_mean_normalisation():
    model, pixels = Recorder(mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4)), torch.rand(2, 1, 6, 6)
    ModelTeacher(model, (0.1,), (0.8,))(normalised(pixels, (0.1,), (0.8,)), torch.arange(2))
    assert torch.allclose(model.seen, normalised(pixels, (0.5,), (0.3,)), atol=1e-5)


@pytest.mark.parametrize("wants", [{}, None])
def test_teacher_that_wants_nothing_sees_what_the_student_sees(student_images, wants):
    model = Recorder()
    model.pretrained_cfg = wants
    ModelTeacher(model, MEAN, STD)(student_images, torch.arange(2))
    assert torch.allclose(model.seen, student_images, atol=1e-6)


def test_teacher_of_a_fixed_size_sees_resized_pictures():
    model = Recorder(fixed_input_size=True, input_size=(3, 8, 10))
    ModelTeacher(model, MEAN, STD)(torch.arange(3.0)[:, None, None].expand(2, 3, 6, 6), torch.arange(2))
    assert torch.allclose(model.seen, torch.arange(3.0)[:, None, None].expand(2, 3, 8, 10), atol=1e-5)


@pytest.mark.parametrize(
    "wants",
    [{"fixed_input_size": True, "input_size": (3, 6, 6)}, {"fixed_input_size": False, "input_size": (3, 9, 9)}],
    ids=["already fits", "any size"],
)
def test_teacher_sees_pictures_in_their_size_where_it_can(student_images, wants):
    model = Recorder(**wants)
    ModelTeacher(model, MEAN, STD)(student_images, torch.arange(2))
    assert torch.allclose(model.seen, student_images, atol=1e-6)


def test_teacher_gets_no_gradients_and_does_not_drop_out(student_images):
    model = Recorder().train()
    teacher = ModelTeacher(model, MEAN, STD)
    images = student_images.requires_grad_()
    logits = teacher(images, torch.arange(2))
    assert not logits.requires_grad
    assert not model.weight.requires_grad
    assert torch.equal(logits, teacher(images, torch.arange(2)))


@pytest.fixture
def checkpoint(tmp_path):
    """A small model of timm's, and its weights in a file."""
    model = timm.create_model("test_vit", num_classes=4).eval()
    save_file(model.state_dict(), tmp_path / "teacher.safetensors")
    return model, str(tmp_path / "teacher.safetensors")


def test_teacher_from_a_checkpoint(checkpoint):
    model, weights = checkpoint
    teacher = make_teacher(DistillationConfig(model="test_vit", weights=weights), NAMES, 4, 3, MEAN, STD)
    pixels = torch.rand(2, 3, 160, 160)
    found = teacher(normalised(pixels, MEAN, STD), torch.arange(2))
    expected = model(normalised(pixels, model.pretrained_cfg["mean"], model.pretrained_cfg["std"]))
    assert torch.allclose(found, expected, atol=1e-4)
    assert teacher(torch.zeros(1, 3, 32, 32), torch.arange(1)).shape == (1, 4)


def test_teacher_of_grey_pictures(tmp_path):
    model = timm.create_model("test_vit", num_classes=4, in_chans=1)
    save_file(model.state_dict(), tmp_path / "grey.safetensors")
    how = DistillationConfig(model="test_vit", weights=str(tmp_path / "grey.safetensors"))
    teacher = make_teacher(how, NAMES, 4, 1, (0.3,), (0.4,))
    assert teacher(torch.zeros(2, 1, 32, 32), torch.arange(2)).shape == (2, 4)


def test_weights_that_do_not_fit_the_teacher_are_refused(checkpoint):
    _, weights = checkpoint
    for model, num_classes in (("test_resnet", 4), ("test_vit", 5)):
        with pytest.raises(ValueError, match=rf"teacher\.safetensors do not fit {model}"):
            make_teacher(DistillationConfig(model=model, weights=weights), NAMES, num_classes, 3, MEAN, STD)


@pytest.mark.parametrize("name", ["x.safetensors", "x.pth"])
def test_damaged_weights_of_a_teacher_are_refused(tmp_path, name):
    (tmp_path / name).write_text("hello, these are no weights")
    with pytest.raises(ValueError, match=rf"distillation\.weights: .*{name} holds no weights"):
        make_teacher(DistillationConfig(model="test_vit", weights=str(tmp_path / name)), NAMES, 4, 3, MEAN, STD)


def test_weights_of_a_teacher_that_are_much_more_than_their_file_are_refused(tmp_path):
    torch.save({"pos_embed": torch.zeros(1).expand(1, 2**30, 4)}, tmp_path / "x.pth")
    with pytest.raises(ValueError, match=r"distillation\.weights: .*x\.pth holds no tensors: its .* bytes stand for"):
        make_teacher(DistillationConfig(model="test_vit", weights=str(tmp_path / "x.pth")), NAMES, 4, 3, MEAN, STD)


def test_missing_weights_of_a_teacher_are_named(tmp_path):
    how = DistillationConfig(model="test_vit", weights=str(tmp_path / "nowhere.pth"))
    with pytest.raises(ValueError, match=r"there is no file .*nowhere\.pth"):
        make_teacher(how, NAMES, 4, 3, MEAN, STD)


def test_published_teacher_must_know_the_classes(monkeypatch):
    asked = {}

    def create_model(name, **options):
        asked.update(options, name=name)
        model = Recorder()
        model.num_classes = 1000
        return model

    monkeypatch.setattr(distillation.timm, "create_model", create_model)
    how = DistillationConfig(model="test_vit")
    with pytest.raises(ValueError, match="teacher test_vit knows 1000 classes, the data 4"):
        make_teacher(how, NAMES, 4, 3, MEAN, STD)
    assert asked == {"name": "test_vit", "pretrained": True, "in_chans": 3}
    assert make_teacher(how, NAMES, 1000, 3, MEAN, STD)(torch.zeros(1, 3, 4, 4), torch.arange(1)).shape == (1, 3)
