"""The door: what is refused, what is removed, what a file says."""

import pytest
import timm
import torch
from torch import nn

import castling
from castling.conversion.folding import optimize
from castling.exporting import ExportFailed, describe_deployment, export, read_metadata
from castling.exporting import capture as capture_module
from castling.tasks.task import Deployment

pytestmark = pytest.mark.slow

FILES = ("model.onnx", "model.xml", "model.pt2")


def test_a_file_says_what_it_is(deit, images, tmp_path):
    seen = export(deit, tmp_path / "new" / "model.pt2", images, dynamic=False)
    assert seen.path == tmp_path / "new" / "model.pt2"
    metadata = read_metadata(seen.path)
    assert (metadata.task, metadata.family, metadata.image_size) == (None, "deit", (32, 32))
    assert metadata.preprocessing["mean"] == [0.485, 0.456, 0.406]
    assert (metadata.outputs, metadata.form) == (("output",), "output")
    assert (metadata.dynamic, metadata.side_step) == ((), 4)
    assert metadata.castled is True


@pytest.mark.parametrize("name", FILES)
def test_nothing_but_the_file_is_written(name, pair, images, tmp_path):
    seen = export(pair, tmp_path / "new" / name, images, dynamic=False)
    written = {path.name for path in seen.path.parent.iterdir()}
    assert written == ({name, "model.bin"} if name == "model.xml" else {name})
    metadata = read_metadata(seen.path)
    assert (metadata.image_size, metadata.dynamic, metadata.castled) == ((32, 32), (), None)
    assert metadata.outputs == ("tokens", "maps.0", "maps.1")


def test_what_a_task_says_is_kept(deit, tmp_path):
    deployment = Deployment(torch.zeros(2, 3, 32, 32), {"mean": [0.1]}, ("scores",), {"labels": ["chat", "größer"]})
    described = describe_deployment(deit, deployment, "naming")
    export(deit, tmp_path / "model.pt2", deployment.example, dynamic=False, metadata=described)
    metadata = read_metadata(tmp_path / "model.pt2")
    assert (metadata.task, metadata.outputs) == ("naming", ("scores",))
    assert (metadata.preprocessing, metadata.facts) == ({"mean": [0.1]}, {"labels": ["chat", "größer"]})


def test_a_network_of_one_size_is_free_in_the_batch(tmp_path):
    model = timm.create_model("deit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=32, depth=1, num_heads=2)
    seen = export(model, tmp_path / "model.pt2", torch.zeros(1, 3, 32, 32))
    assert seen.dynamic == ("batch",)
    assert [shape[0] for shape in seen.shapes] == [1, 3]
    assert read_metadata(seen.path).castled is None


def test_a_branch_is_refused_unless_wanted(tiny, images, tmp_path):
    model, path = tiny("deit"), tmp_path / "model.pt2"
    with pytest.raises(ValueError, match=r"1 auxiliary branches are left, such as that of 'blocks.0.attn'"):
        export(model, path, images)
    assert not list(tmp_path.iterdir())
    seen = export(model, path, images, dynamic=False, with_branch=True)
    assert seen.num_softmax == 1
    assert any("-> (1, 2, " in line for line in seen.quadratic)
    assert read_metadata(seen.path).castled is False


class SoftmaxTokens(nn.Module):
    """The attention of every plain transformer."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 24, 8, 8)
        self.qkv = nn.Linear(24, 72)

    def forward(self, images):
        q, k, v = self.qkv(self.patches(images).flatten(2).transpose(1, 2)).unsqueeze(1).chunk(3, dim=-1)
        return nn.functional.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize("name", FILES)
def test_softmax_attention_is_seen_to_be_quadratic(name, images, tmp_path):
    seen = export(SoftmaxTokens(), tmp_path / name, images, dynamic=False)
    assert seen.num_softmax == 1
    assert seen.quadratic


@pytest.mark.parametrize("name", FILES[1:])
def test_a_wrong_file_is_removed_and_an_old_one_stays(name, pair, images, tmp_path, monkeypatch):
    export(pair, tmp_path / name, images, dynamic=False)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def spoiled(model):
        fast = optimize(model)
        fast.linear.bias.data += 0.5
        return fast

    monkeypatch.setattr(capture_module, "optimize", spoiled)
    with pytest.raises(ExportFailed, match=r"differs from PyTorch's by 0\.5 .* more than the tolerance of 0\.0001"):
        export(pair, tmp_path / name, images, dynamic=False)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    with pytest.raises(ExportFailed):
        export(pair, tmp_path / f"other{(tmp_path / name).suffix}", images, dynamic=False)
    assert {path.name for path in tmp_path.iterdir()} == set(before)


def test_a_converted_network_is_refused_while_it_holds_softmax(tmp_path):
    options = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2}
    host = timm.create_model("deit_tiny_patch16_224", **options)
    model = castling.convert(host, castling.AttentionConfig(aux=False), blend=0.5)
    assert not castling.is_castled(model)
    with pytest.raises(ValueError, match="still hold the host's softmax"):
        export(model, tmp_path / "model.pt2", torch.zeros(1, 3, 32, 32))
    assert not list(tmp_path.iterdir())
    castling.set_blend(model, 1.0)
    assert castling.is_castled(model)
    seen = export(model, tmp_path / "model.pt2", torch.zeros(1, 3, 32, 32), dynamic=False)
    assert seen.num_softmax == 0
    assert read_metadata(seen.path).castled is True


def test_the_model_is_left_as_it_was(deit, images, tmp_path):
    deit.train()
    before = {name: value.clone() for name, value in deit.state_dict().items()}
    export(deit, tmp_path / "model.pt2", images, dynamic=False)
    assert all(module.training for module in deit.modules())
    assert list(deit.state_dict()) == list(before)
    assert all(torch.equal(value, before[name]) for name, value in deit.state_dict().items())


def test_bad_input_is_refused_before_anything_is_written(deit, images, tmp_path):
    with pytest.raises(ValueError, match=r"unknown kind of file '.*model\.onx': did you mean '\.onnx'"):
        export(deit, tmp_path / "model.onx", images)
    assert not list(tmp_path.iterdir())


class OneTensorTwice(nn.Module):
    """Outputs that OpenVINO's frontend does not take."""

    def forward(self, images):
        mean = images.mean((2, 3))
        return {"first": mean, "second": mean}


def test_what_an_exporter_refuses_is_said_and_leaves_no_file(images, tmp_path):
    with pytest.raises(ExportFailed, match=r"model\.xml cannot be written: "):
        export(OneTensorTwice(), tmp_path / "model.xml", images, dynamic=False)
    assert not list(tmp_path.iterdir())
