import timm
import torch

import castling.models  # noqa: F401 - registers castling_*
from castling.measure import count_macs, count_parameters
from castling.measure.shapes import shapes_only


def test_a_network_of_shapes_counts_as_a_real_one():
    with shapes_only():
        shapes = timm.create_model("castling_lcnet_vit_small", scale=0.25, num_heads=(2, 2))
    real = timm.create_model("castling_lcnet_vit_small", scale=0.25, num_heads=(2, 2))
    assert all(parameter.is_meta for parameter in shapes.parameters())
    assert {name: value.shape for name, value in shapes.state_dict().items()} == {
        name: value.shape for name, value in real.state_dict().items()
    }
    assert count_parameters(shapes) == count_parameters(real)
    image = torch.zeros(1, 3, 64, 64)
    assert count_macs(shapes, image.to("meta")).total == count_macs(real, image).total


def test_initial_values_are_spared_and_real_tensors_are_not():
    with shapes_only():
        empty, there = torch.empty(2), torch.zeros(2, device="cpu")
        assert torch.nn.init.ones_(empty) is empty
        assert torch.nn.init.ones_(there).tolist() == [1, 1]
    assert torch.nn.init.ones_(torch.empty(2)).tolist() == [1, 1]
