"""Every family in every format runs at several sizes and equals PyTorch."""

import pytest
import torch

import castling
from castling.conversion.folding import optimize
from castling.export import FORMATS, describe, open_export, read_metadata, verify
from castling.export.capture import capture

SIDES = {"deit": 32, "levit": 64, "mvitv2": 64}


@pytest.fixture(scope="module", params=SIDES)
def captured(request, tiny):
    """A castled network with its graph, which takes longest and is the same for every format."""
    model = castling.castle(tiny(request.param))
    side = SIDES[request.param]
    return model, capture(optimize(model), torch.zeros(1, 3, side, side)), side


def test_batch_height_and_width_are_free(captured):
    assert captured[1].dynamic == ("batch", "height", "width")


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_equals_pytorch_at_any_size(captured, name, tmp_path):
    model, graph, side = captured
    path = tmp_path / f"model{FORMATS[name].suffixes[0]}"
    metadata = describe(model, torch.zeros(1, 3, side, side), labels=tuple("abcdefghij"), dynamic=graph.dynamic)
    FORMATS[name].write(graph, path, metadata)
    # The size that it was made for, which position embeddings are not resampled for, a batch of one, a rectangle.
    shapes = [(1, side, side), (3, side, side), (1, 2 * side, side), (2, 3 * side, 2 * side)]
    seen = verify(path, model, [torch.randn(batch, 3, *sides) for batch, *sides in shapes], tolerance=1e-4)
    old = torch.__version__ < (2, 8)  # resamples position embeddings less exactly in ONNX
    assert seen.largest_difference <= (1e-4 if old else 1e-5)
    assert seen.num_softmax == 0
    assert seen.quadratic == ()
    assert seen.num_tokens > max(max(value.shape) for value in model.parameters())
    assert seen.native_share == 1.0
    assert seen.num_operators == sum(open_export(path).operators.values()) > 50
    assert read_metadata(path) == metadata
