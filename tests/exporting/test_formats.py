"""Every family in every format runs at several sizes and equals PyTorch; so do networks with several outputs."""

import pytest
import timm
import torch

import castling
from castling.conversion.folding import optimize
from castling.exporting import FORMATS, describe_network, export, open_export, read_metadata, verify
from castling.exporting.capture import capture
from castling.exporting.outputs import names_in
from castling.measure.trees import named_leaves

SIDES = {"deit": 32, "levit": 64, "mvitv2": 64}
FILES = [f"model{form.suffixes[0]}" for form in FORMATS.values()]
# torch's own format stands for all in the fast tier.
BY_FORMAT = [name if name.endswith(".pt2") else pytest.param(name, marks=pytest.mark.slow) for name in FILES]


@pytest.fixture(
    scope="module",
    params=["deit", pytest.param("levit", marks=pytest.mark.slow), pytest.param("mvitv2", marks=pytest.mark.slow)],
)
def captured(request, tiny):
    """A castled network with its graph, which takes longest and is the same for every format."""
    model = castling.castle(tiny(request.param))
    side = SIDES[request.param]
    return model, capture(optimize(model), torch.zeros(1, 3, side, side)), side


def test_batch_height_and_width_are_free(captured):
    assert captured[1].dynamic == ("batch", "height", "width")


@pytest.mark.parametrize("name", BY_FORMAT)
def test_a_file_equals_pytorch_at_any_size(captured, name, tmp_path):
    model, graph, side = captured
    path = tmp_path / name
    metadata = describe_network(model, torch.zeros(1, 3, side, side), form=graph.form, dynamic=graph.dynamic)
    castling.exporting.formats.format_of(path).write(graph, path, metadata)
    # The size that it was made for, which position embeddings are not resampled for, a batch of one, a rectangle.
    shapes = [(1, side, side), (3, side, side), (1, 2 * side, side), (2, 3 * side, 2 * side)]
    seen = verify(path, model, [torch.randn(batch, 3, *sides) for batch, *sides in shapes], tolerance=1e-4)
    old = torch.__version__ < (2, 8)  # resamples position embeddings less exactly in ONNX
    assert seen.largest_difference <= (1e-4 if old else 1e-5)
    assert seen.num_softmax == 0
    assert seen.quadratic == ()
    assert seen.num_tokens > max(max(value.shape) for value in model.parameters())
    assert seen.native_share > 0.9  # well above the limit
    assert seen.num_operators == sum(open_export(path).operators.values()) > 50
    assert read_metadata(path) == metadata


FORMS = {
    "centred": {"kernel": "mean_centred", "output_norm": "none", "rotary": True},
    "mean": {"reduction": "mean"},
    "mean of all": {"reduction": "mean", "value_term": "sum"},
}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", FILES)
def test_forms_that_divide_by_the_number_of_tokens_take_any_size(name, form, tmp_path):
    options = {"img_size": 32, "patch_size": 4, "embed_dim": 64, "depth": 1, "num_heads": 2}
    model = timm.create_model("castling_deit_tiny_patch16_224", attention=FORMS[form], **options)
    seen = export(castling.castle(model).eval(), tmp_path / name, torch.randn(1, 3, 32, 32))
    assert seen.largest_difference < 1e-5
    assert read_metadata(seen.path).dynamic == ("batch", "height", "width")


@pytest.mark.parametrize("name", BY_FORMAT)
def test_shapes_that_pytorch_refuses_are_refused_by_files(captured, name, tmp_path):
    model, graph, side = captured
    path, example = tmp_path / name, torch.zeros(1, 3, side, side)
    metadata = describe_network(model, example, form=graph.form, dynamic=graph.dynamic, side_step=graph.side_step)
    castling.exporting.formats.format_of(path).write(graph, path, metadata)
    opened, step = open_export(path), graph.side_step
    assert len(opened.run(example)) == 1
    for shape in [(1, 3, 65, 64), (1, 3, 64, 0), (1, 1, 64, 64), (3, 64, 64)]:
        with pytest.raises(
            ValueError, match=rf"takes images \(any, 3, multiples of {step}, multiples of {step}\); got"
        ):
            opened.run(torch.zeros(shape))


@pytest.mark.parametrize("name", BY_FORMAT)
@pytest.mark.parametrize("outputs", [(), ("words", "grid", "mean")])
def test_a_file_gives_the_tree_of_the_network(pair, images, name, outputs, tmp_path):
    seen = export(pair, tmp_path / name, images, metadata=describe_network(pair, images, outputs=outputs))
    assert seen.dynamic == ("batch", "height", "width")
    found = open_export(seen.path).run(images)
    assert {name: tensor.shape for name, tensor in named_leaves(found).items()} == {
        "tokens": (1, 1024, 5),
        "maps.0": (1, 4, 32, 32),
        "maps.1": (1, 32, 32),
    }
    assert found["masks"] is None
    metadata = read_metadata(seen.path)
    assert metadata.outputs == (outputs or ("tokens", "maps.0", "maps.1")) == names_in(metadata.form)


@pytest.mark.slow
def test_outputs_have_their_names_in_the_engines(pair, images, tmp_path):
    import onnxruntime

    from castling.exporting.openvino import read_openvino

    export(pair, tmp_path / "model.onnx", images, dynamic=False)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    assert [output.name for output in session.get_outputs()] == ["tokens", "maps.0", "maps.1"]
    export(pair, tmp_path / "model.xml", images, dynamic=False)
    outputs = read_openvino(tmp_path / "model.xml").outputs
    assert [output.get_any_name() for output in outputs] == ["tokens", "maps.0", "maps.1"]


def test_bad_paths(tmp_path):
    with pytest.raises(ValueError, match="there is no file"):
        read_metadata(tmp_path / "model.onnx")
    with pytest.raises(ValueError, match="unknown kind of file"):
        open_export(tmp_path / "model.tflite")
