import pytest
import torch
from torch import nn

from castling.exporting import ExportFailed, export, verify

pytestmark = pytest.mark.slow


def test_the_output_that_differs_is_named(pair, images, tmp_path):
    path = export(pair, tmp_path / "model.pt2", images, dynamic=False).path
    nn.init.constant_(pair.linear.bias, 9.0)
    with pytest.raises(ExportFailed, match=r"tokens of .*model\.pt2 differs from PyTorch's by 9\..* for an input of"):
        verify(path, pair, [images])


def test_other_outputs_are_told_from_wrong_ones(pair, images, tmp_path):
    path = export(pair, tmp_path / "model.pt2", images, dynamic=False).path
    with pytest.raises(ExportFailed, match=r"something else than PyTorch .*: outputs have other names"):
        verify(path, pair.conv, [images])
    pair.linear = nn.Linear(4, 6)
    with pytest.raises(ExportFailed, match=r"something else than PyTorch .*: tokens has the shape \(1, 1024, 5\)"):
        verify(path, pair, [images])


def test_outputs_that_are_no_numbers_differ(images, tmp_path):
    network = nn.Conv2d(3, 4, 3)
    path = export(network, tmp_path / "model.pt2", images, dynamic=False).path
    nn.init.constant_(network.bias, float("nan"))
    with pytest.raises(ExportFailed, match=r"output of .* differs from PyTorch's by nan"):
        verify(path, network, [images], tolerance=float("inf"))


@pytest.mark.parametrize("name", ["model.onnx", "model.xml", "model.pt2"])
def test_a_static_file_takes_its_own_size_only(name, images, tmp_path):
    network = nn.Conv2d(3, 4, 8, 8)
    path = export(network, tmp_path / name, images, dynamic=False).path
    with pytest.raises(ExportFailed, match=r"does not run for an input of \(1, 3, 48, 48\)"):
        verify(path, network, [torch.zeros(1, 3, 48, 48)])
    with pytest.raises(ValueError, match="inputs is empty"):
        verify(path, network, [])


def test_a_file_with_a_softmax_is_none_of_a_linear_network(tiny, deit, images, tmp_path):
    twin = tiny("deit", kernel="softmax")
    seen = export(twin, tmp_path / "model.pt2", images, dynamic=False)
    with pytest.raises(ExportFailed, match="has 1 softmax operators; the network in PyTorch has none"):
        verify(seen.path, deit, [images], tolerance=1e9)


def test_every_module_stays_in_its_mode(deit, images, tmp_path):
    path = export(deit, tmp_path / "model.pt2", images, dynamic=False).path
    deit.train()
    deit.blocks.eval()
    before = [module.training for module in deit.modules()]
    verify(path, deit, [images])
    assert [module.training for module in deit.modules()] == before


@torch.library.custom_op("castling_tests::double", mutates_args=())
def double(images: torch.Tensor) -> torch.Tensor:
    return 2 * images


@double.register_fake
def _(images):
    return torch.empty_like(images)


class Foreign(nn.Module):
    """An operator that torch does not have by itself."""

    def forward(self, images):
        return double(images)


class Loops(nn.Module):
    """Operators for which OpenVINO has plain loops."""

    def forward(self, images):
        return images.asinh().atan().cumsum(-1)


@pytest.mark.parametrize(
    ("name", "network", "others"),
    [
        ("model.pt2", Foreign(), "1 castling_tests.double.default"),
        ("model.onnx", nn.Sequential(nn.Mish(), nn.Hardswish()), "1 Mish, 1 HardSwish"),  # ONNX Runtime has neither
        ("model.xml", Loops(), "1 Asinh, 1 Atan, 1 CumSum"),
    ],
)
def test_a_graph_that_the_engine_has_no_code_for_is_refused(name, network, others, images, tmp_path):
    seen = export(network, tmp_path / name, images, dynamic=False, min_native=0)
    assert seen.native_share == 0
    with pytest.raises(ExportFailed, match=rf" 0 % run natively, less than the limit of 80 %; the others are {others}"):
        verify(seen.path, network, [images])
